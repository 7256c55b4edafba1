import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import psgd
from psgd.config import TrainConfig
from psgd.kernels.errors import PeerLostError, UsageError
from psgd.metrics.run_metrics import RunMetrics
from psgd.runtime.faults import InjectedError, Injector, check
from psgd.training import run


def delays(text, worker=0, workers=4, steps=40, computed=0.01):
    slow = Injector(text, worker, workers)
    return [round(slow.delay_s(step, computed), 9) for step in range(steps)]


def test_nothing():
    assert set(delays("")) == {0}
    assert [Injector(text, 0, 4).slows for text in ("", "nan:0@3", "slow:2:4")] == [False] * 3
    assert all(Injector(text, 0, 4).slows for text in ("compute:0.1", "slow:0:4", "slow:rotating:2:0.5"))


def test_one_worker_takes_a_factor_longer():
    assert set(delays("slow:2:4", worker=2)) == {0.03}
    assert set(delays("slow:2:4", worker=1)) == {0}


def test_every_gradient_takes_at_least_so_long_before_the_factor():
    assert set(delays("compute:0.05,slow:0:2")) == {0.09}
    assert set(delays("compute:0.005")) == {0}


def test_rotating_stalls_hit_one_worker_at_a_time_and_each_at_its_share():
    hit = [[delay > 0 for delay in delays("slow:rotating:10:0.05", worker)] for worker in range(4)]
    assert [sum(steps) for steps in hit] == [2, 2, 2, 2]
    assert max(map(sum, zip(*hit, strict=True))) == 1
    assert set(delays("slow:rotating:10:0.05")) == {0, 0.09}


@pytest.mark.parametrize(
    "text",
    [
        "slow",
        "slow:1",
        "slow:x:2",
        "slow:1:0.5",
        "slow:4:2",
        "slow:1:nan",
        "slow:rotating:2",
        "slow:rotating:2:0",
        "slow:rotating:2:1.5",
        "compute:-1",
        "compute:inf",
        "fast:1:2",
        "slow:²:2",
        "kill:0",
        "kill:0@0",
        "kill:4@1",
        "kill:s2@1",
        "kill:-1@1",
        "kill:0@1:2",
        "kill:0@" + 19 * "9",
        "kill:S0@1",
        "stop:0@1",
        "stop:0@1:-1",
        "stop:0@1:inf",
        "stop:0@1:$(reboot)",
        "raise:0@x",
        "nan:@3",
        "explode:0@1",
    ],
)
def test_what_is_no_specification(text):
    with pytest.raises(UsageError, match="inject"):
        check(text, 4, 2)


def test_what_a_bench_takes():
    check("slow:0:2,compute:0.1", 1, only_slow=True)
    with pytest.raises(UsageError, match="slow and compute only"):
        check("slow:0:2,kill:0@1", 1, only_slow=True)


def test_events_hit_their_rank_at_their_step_only():
    text = "raise:1@3,raise:s1@2,slow:1:2, raise:0@1000"
    for index, server, at in [(0, False, 1000), (1, False, 3), (2, False, None), (0, True, None), (1, True, 2)]:
        injector = Injector(text, index, 4, 2, server)
        struck = []
        for step in range(1100):
            try:
                injector.begin(step)
            except InjectedError as error:
                struck.append((step + 1, str(error).rpartition(":")[2]))
        assert struck == ([(at, f"{'s' * server}{index}@{at}")] if at else [])


def test_nan_is_one_batch():
    injector = Injector("nan:0@2,nan:0@5", 0, 1)
    spoiled = []
    for step in range(7):
        x = np.ones((3, 2), np.float32)
        injector.poison(step, x)
        assert np.isnan(x).all() or (x == 1).all()
        spoiled.append(bool(np.isnan(x).any()))
    assert spoiled == [False, True, False, False, True, False, False]


def test_a_server_is_struck_at_its_version_and_only_once():
    told = []
    metrics = RunMetrics(1, lambda m, event: told.append(m.steps))
    params = np.ones(4)
    injector = Injector("nan:s0@2,raise:s0@4", 0, 1, 1, server=True)
    injector.watch(metrics, params)
    metrics.progress(1, 1, 0.1)
    assert (params == 1).all()
    metrics.progress(2, 2, 0.1)
    assert np.isnan(params).all()
    params[:] = 1
    metrics.progress(2, 2, 0.1)
    metrics.progress(3, 3, 0.1)
    assert (params == 1).all()
    with pytest.raises(InjectedError):
        metrics.progress(4, 4, 0.1)
    assert metrics.steps == 4 and told


def test_without_events_nothing_is_watched():
    metrics = SimpleNamespace(progress=None)
    Injector("slow:0:2,kill:1@3", 0, 2, 1, server=True).watch(metrics, np.ones(1))
    assert metrics.progress is None


def environment():
    return {**os.environ, "PYTHONPATH": str(Path(psgd.__file__).resolve().parent.parent)}


PROGRAM = """
from psgd.runtime.faults import Injector
injector = Injector("stop:0@1:0.2,kill:0@2", 0, 1)
injector.begin(0)
print("went on", flush=True)
injector.begin(1)
print("never", flush=True)
"""


def test_kill_and_stop_are_the_signals():
    child = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, env=environment())
    try:
        assert os.waitpid(child.pid, os.WUNTRACED)[1] == 0x7F | signal.SIGSTOP << 8
        start = time.monotonic()
        assert child.wait(30) == -signal.SIGKILL
        assert 0.1 < time.monotonic() - start < 20
        assert child.stdout.read() == "went on\n"
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


@pytest.mark.ranks(3)
def test_a_server_that_raises_ends_the_run_for_all(comm):
    config = TrainConfig(strategy="async", epochs=2, eval_every=0, inject="raise:s0@5")
    with pytest.raises(
        InjectedError if comm.rank == 0 else PeerLostError, match="raise:s0@5" if comm.rank == 0 else "server 0"
    ):
        run(config, comm)


@pytest.mark.ranks(2)
def test_a_spoiled_batch_spoils_the_whole_run(comm):
    for model, strategy in [("cnn", "sync"), ("mlp", "allreduce")]:
        config = TrainConfig(
            strategy=strategy, model=model, hidden=8, epochs=1, eval_every=0, batch_size=64, inject="nan:0@9"
        )
        result = run(config, comm)
        if result is not None:
            assert result["train_loss"] is None and result["test_accuracy"] < 0.2


@pytest.mark.job
def test_in_a_job(psgd_command):
    """A server stops, then a worker, then the server dies, and the job with it."""
    few = ("train", "--epochs", "3", "--eval-every", "0", "--json")
    done = psgd_command(*few, "--inject", "stop:s0@3:0.4", "--inject", "stop:1@9:0.4,slow:0:1,kill:s0@40")
    assert done.returncode != 0 and '"test_accuracy"' not in done.stdout
    assert done.seconds > 0.8
