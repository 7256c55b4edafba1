"""What is refused before a start, and what is not."""

import functools
import subprocess
import sys

import pytest

from psgd.config import configure
from psgd.estimate.rank_memory import ON_HOST, Estimate
from psgd.kernels.errors import UsageError
from psgd.launch import options
from psgd.launch.memory import cards, limits, refusal


@pytest.fixture
def memory(monkeypatch):
    """Sets this node's memory and that of its GPUs."""

    def is_now(nbytes, *gpus):
        monkeypatch.setattr(limits, "of_node", lambda: limits.Limit(nbytes, "this machine has"))
        monkeypatch.setattr(cards, "memory", lambda: list(gpus))

    return is_now


def check(config, *ranks):
    refusal.check(config, *ranks, functools.partial(options.model_of, config))


WIDE = {"dataset": "digits", "model": "resmlp", "hidden": 64, "strategy": "allreduce"}


def test_what_fits_is_not_refused(memory):
    memory(8 << 30)
    check(configure(**WIDE), 0, 2, 2)


def test_the_table_comes_with_the_refusal(memory, capsys):
    memory(800_000_000)
    config = configure(**WIDE, batch_size=8_000)
    with pytest.raises(UsageError) as caught:
        check(config, 0, 4, 4)
    said = str(caught.value)
    assert "this machine has 800 MB for 4 ranks" in said and "the batch does not fit, one sample does" in said
    assert said.endswith("--try-anyway starts it all the same")
    assert "worker, 4 of them, on cpu" in capsys.readouterr().err
    check(config, 0, 4, 1)  # three of the ranks are elsewhere


def test_ranks_share_the_node(memory):
    config = configure(**WIDE, batch_size=500)
    memory(400_000_000)
    check(config, 0, 2, 2)
    with pytest.raises(UsageError, match="for 16 ranks"):
        check(config, 0, 16, 16)


def test_a_gpus_memory_is_its_ranks(memory):
    config = configure(**WIDE, batch_size=4000, device="cuda")
    memory(1 << 40, 400_000_000, 1 << 40)
    check(config, 0, 2, 2)
    with pytest.raises(UsageError, match=r"200 MB are there.*of a GPU that 2 ranks share"):
        check(config, 0, 4, 4)
    memory(1 << 40)  # no GPU shows: others say that
    check(config, 0, 4, 4)


def test_files_of_the_user_are_not_run(memory):
    memory(1)
    check(configure(model="missing.py:make"), 1, 2, 3)


def test_nobody_knows_where_servers_are():
    ranks = [
        Estimate("worker", 3, {"a": 10}),
        Estimate("server", 1, {"a": 2}),
        Estimate("worker", 1, {"a": 99}, "cuda"),
    ]
    assert [refusal.needed(ranks, here) for here in range(6)] == [0, 0, 2, 12, 22, 32]


def test_an_offloaded_worker_needs_its_part_on_the_host():
    ranks = [Estimate("worker", 2, {"a": 99}, "cuda"), Estimate(ON_HOST, 2, {"a": 10})]
    assert [refusal.needed(ranks, here) for here in range(4)] == [0, 10, 20, 20]


def test_small_models_load_nothing():
    code = (
        "import sys; from psgd.config import configure; from psgd.launch.memory import refusal;"
        "refusal.check(configure(), 1, 2, 3, None); "
        "print(*{'numba', 'mpi4py.MPI', 'psgd.nn.stage'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""
