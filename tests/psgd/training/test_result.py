"""The result: sums over the workers on rank 0, None elsewhere."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from harness import mpi
from mpi4py import MPI

from psgd.config import TrainConfig
from psgd.metrics.run_metrics import RunMetrics
from psgd.training.result import collect


class Evaluated:
    """A backend whose evaluation tells which part of how many it was asked for."""

    tally = None

    def evaluate(self, index, workers):
        self.tally(*np.array([[0, 0, 1], [0, 1, 1]] if index else [[0, 1, 2], [0, 2, 1]]))
        return 10 * (index + 1), float(workers)

    def wait(self):
        pass


@pytest.mark.ranks(3)
def test_sums(comm):
    server = comm.rank == 0
    connection = SimpleNamespace(
        **{"mesh": SimpleNamespace(index=comm.rank - 1, survival=None), "workers": 2, "servers": 1, "checkpoint": None},
        **{"skipped": 3 * comm.rank, "leaving": False, "bytes_sent": 100 + comm.rank, "bytes_received": 7},
    )
    trainer = None if server else SimpleNamespace(backend=Evaluated())
    metrics = RunMetrics(2, samples_per_epoch=50)
    metrics.applied(0, 4, 0.25, 0)
    metrics.dropped[1] = 1
    result = collect(TrainConfig(lr=0.5), comm, connection, metrics, trainer, test_samples=40)
    assert (result is None) == (comm.rank != 0)
    if result is not None:
        assert (result["test_accuracy"], result["test_loss"]) == (30 / 40, 4 / 40)
        right, predicted, labels = np.array([2, 1, 0]), np.array([2, 3, 1]), np.array([3, 2, 1])
        assert result["test_precision"] == pytest.approx((right / predicted).mean())
        assert result["test_recall"] == pytest.approx((right / labels).mean())
        assert result["test_f1"] == pytest.approx((2 * right / (predicted + labels)).mean())
        assert (result["bytes_sent"], result["bytes_received"]) == (203, 14)
        assert (result["lr"], result["workers"], result["servers"], result["train_samples"]) == (0.5, 2, 1, 50)
        assert result["workers_dropped"] == [3, 7] and result["diverged"] is False
        assert result["mpi"].split()[-1][0].isdigit() and result["requeue"] is False


class Blind:
    """A backend that tells nobody how a sample was classified."""

    def evaluate(self, index, workers):
        return 1, 1.0


class Silent(Blind):
    """A backend that would tell."""

    tally = None


@pytest.mark.parametrize(("backend", "tokens"), [(Blind(), 0), (Silent(), 5)])
def test_without_outcomes_there_is_no_f1(backend, tokens):
    connection = SimpleNamespace(
        **{"mesh": SimpleNamespace(index=0, survival=None), "workers": 1, "servers": 0, "checkpoint": None},
        **{"skipped": 0, "leaving": False, "bytes_sent": 0, "bytes_received": 0},
    )
    metrics = RunMetrics(1, samples_per_epoch=50)
    metrics.applied(0, 4, 0.25, 0)
    result = collect(
        TrainConfig(), MPI.COMM_SELF, connection, metrics, SimpleNamespace(backend=backend), 4, tokens=tokens
    )
    assert getattr(backend, "tally", None) is None
    assert result["test_accuracy"] == 0.25 and not {"test_f1", "test_recall", "test_precision"} & set(result)


DIES = r"""
import os, signal, sys
from psgd.launch.cli import main
from psgd.training import result
from psgd.training.restart.attempts import Attempt

place, rank = sys.argv.pop(1).split(":")
at_once = os.environ["OMPI_COMM_WORLD_RANK"] == rank
evaluate, leaves = result._evaluate, Attempt.leaves


def die(where):
    if at_once and place == where:
        os.kill(os.getpid(), signal.SIGKILL)


def dying(*words):
    die("evaluation")
    return evaluate(*words)


def leaving(*words):
    die("end")
    return leaves(*words)


result._evaluate, Attempt.leaves = dying, leaving
main()
"""


@pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")
@pytest.mark.parametrize(
    ("strategy", "dies", "spares"),
    [("allreduce", "evaluation:0", 0), ("sync", "evaluation:2", 1), ("allreduce", "end:1", 1)],
)
def test_a_worker_that_dies_behind_the_last_step_costs_nothing(strategy, dies, spares, job, tmp_path):
    words = [
        "train",
        "--strategy",
        strategy,
        "--hidden",
        "8",
        "--epochs",
        "1",
        "--json",
        "--log",
        str(tmp_path / "log"),
    ]
    if spares:
        words += ["--spares", "1", "--checkpoint-dir", str(tmp_path / "saves"), "--checkpoint-every", "10"]
    done = job(3 + spares, f"import sys\nsys.argv[1:] = {[dies, *words]}\n{DIES}", ulfm=True, timeout=60)
    assert done.returncode == 4, done.stderr
    (printed,) = done.stdout.splitlines()
    found, rank = json.loads(printed), int(dies[-1])
    assert found["samples"] == 1497 and 0.1 < found["test_accuracy"] <= 1 and "begins again" not in done.stderr
    if dies.startswith("evaluation"):
        assert found["lost_ranks"] == [rank] and done.stderr.count(f"(rank {rank}) is lost after") == 1
        events = map(json.loads, (tmp_path / "log").read_text().splitlines())
        lost = [event for event in events if event["event"] == "lost"]
        assert [event["rank"] for event in lost] == [rank]
