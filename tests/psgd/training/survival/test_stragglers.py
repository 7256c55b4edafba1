"""Whom a rank of a node reports and drops, by a table of what the others do; and jobs with slow and stopped workers."""

import json
from types import SimpleNamespace

import pytest
from harness import mpi

from psgd.runtime.ulfm.tolerance import TOLERANCE
from psgd.training.survival import stragglers
from psgd.training.survival.stragglers import Stragglers

S = 10**9


class Table:
    """A board with times that a test sets: of each rank since when it waits, or since when it computes or is silent."""

    def __init__(self, waits, lags, rank=0, nodes=None):
        self.waits, self.lags, self.rank = waits, lags, rank
        self.nodes = nodes or [0] * (1 + max(lags))
        self.node = [each for each, first in enumerate(self.nodes) if first == self.nodes[rank]]
        self.dropped, self.computes = [], 0

    def wait(self, waits):
        self.computes += not waits
        if not waits:
            self.waits.pop(self.rank, None)

    def beat(self):
        pass

    def waits_since(self, rank):
        return self.waits.get(rank)

    def lags_since(self, rank):
        return self.lags[rank]

    def beats_since(self, rank):
        return 99 * S if rank == 1 else 1

    def stopped(self, rank):
        return rank == 2

    def drop(self, rank, waited_ns):
        self.dropped.append((rank, waited_ns // S))


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(stragglers, "say", lines.append)
    return lines


@pytest.fixture
def may_die():
    TOLERANCE.allow({1, 2, 3})
    yield
    TOLERANCE.allow(())


def watch(table, drop_s, busy=False, looks=10, servers=()):
    """Looks for some seconds, until the second `looks`; every look is in time, as of a thread that runs."""
    job = SimpleNamespace(Get_failed=lambda: SimpleNamespace(Get_size=lambda: 0))
    one = Stragglers(table, job, drop_s, "rank {}".format, lambda: busy, servers)
    one._looked = one._patient_from = 0
    for now in range(0, looks * 10 + 1):
        one.look(now * S // 10)
    return one


@pytest.mark.usefixtures("may_die")
@pytest.mark.parametrize(
    ("waits", "lags", "drop_s", "dropped"),
    [
        ({0: 1}, {1: 1, 2: 99 * S}, 9.8, {(1, 9)}),  # 1 computes since the start, 2 has come meanwhile
        ({0: 1}, {1: 1, 2: 99 * S}, None, set()),  # not asked for
        ({0: 1}, {1: 1, 2: 99 * S}, 10.5, set()),  # not for long enough
        ({}, {1: 1, 2: 1}, 9.8, set()),  # nobody waits here
        ({0: 8 * S}, {1: 1, 2: 1}, 9.8, set()),  # it has not waited for so long itself
        ({0: 1}, {1: 1, 4: 1}, 9.8, {(1, 9)}),  # the run does not go on without 4
    ],
)
def test_one_is_dropped_that_lags_while_another_waits(waits, lags, drop_s, dropped, said):
    table = Table(waits, {rank: lags.get(rank, 99 * S) for rank in range(1 + max(lags))})
    watch(table, drop_s)
    assert set(table.dropped) == dropped


@pytest.mark.usefixtures("may_die", "said")
def test_of_servers_only_one_that_is_stopped_is_dropped():
    table = Table({0: 1}, {0: 1, 1: 1, 2: 1})
    watch(table, 9.8, servers=[1, 2])
    assert {rank for rank, _ in table.dropped} == {2}


@pytest.mark.usefixtures("may_die", "said")
def test_what_was_before_this_rank_was_stopped_itself_says_nothing():
    table = Table({0: 1}, {0: 1, 1: 1, 2: 99 * S})
    one = watch(table, 3.0, looks=2)
    one.look(60 * S)
    one.look(62 * S)  # again too late
    assert table.dropped == []
    for tenth in range(1, 40):
        one.look(62 * S + tenth * S // 10)
    assert {rank for rank, _ in table.dropped} == {1}


@pytest.mark.usefixtures("may_die", "said")
def test_who_evaluates_computes_since_just_now():
    table = Table({0: 1}, {0: 1, 1: 1})
    watch(table, 3.0, busy=True)
    assert table.computes == 101 and table.dropped == []


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_that_waits_reports_once_who_is_late(rank, said, monkeypatch):
    monkeypatch.setenv("PSGD_STALL", "4")
    watch(Table({0: 1, 1: 1}, {0: 99 * S, 1: 99 * S, 2: 1, 3: 1}, rank=rank), None)
    assert (
        said == []
        if rank
        else [
            "warning: rank 2 is stopped, and others have waited for it for 4 s",
            "warning: rank 3 has not come to its next step, and others have waited for it for 4 s",
        ]
    )


@pytest.mark.usefixtures("may_die")
def test_one_alone_on_its_node_is_named_and_nobody_is_dropped(said, monkeypatch):
    monkeypatch.setattr(stragglers, "_dead", lambda job: {3})
    table = Table({0: 1}, {0: 99 * S, 1: 99 * S, 2: 1, 3: 1}, nodes=[0, 0, 2, 2])
    watch(table, 3.0)
    assert table.dropped == [] and len(said) == 1
    assert "nobody lives who could drop rank 2, alone on a node: the run waits" in said[0]


@pytest.mark.job
@pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")
@pytest.mark.parametrize("strategy", ["ssp", "allreduce"])
def test_a_slow_worker_is_dropped_and_its_samples_are_done(strategy, psgd_command, tmp_path):
    words = ["--strategy", strategy, "--workers", "3", "--epochs", "3", "--log", str(tmp_path / "log"), "--json"]
    words += ["--inject", "compute:0.003,slow:2:5000", "--drop-straggler-after", "1.5"]
    done = psgd_command("train", *words, timeout=90)
    assert done.returncode == 4, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["samples"] == 3 * result["train_samples"] and result["test_accuracy"] > 0.9
    (lost,) = [e for e in map(json.loads, (tmp_path / "log").read_text().splitlines()) if e["event"] == "lost"]
    assert lost["worker"] == 2 and lost["cause"].startswith("dropped as others had waited for it for 1.")


STOPPED = """
import os
os.environ["PSGD_STALL"] = "1"
from mpi4py import MPI
from psgd.config import configure
from psgd.strategies.catalog import STRATEGIES
from psgd.training import run
for name, strategy in STRATEGIES.items():
    if strategy.survives:
        servers = int(strategy.servers)
        inject = f"compute:0.002,stop:{1 + (not servers)}@9:2.5"
        config = configure(
            strategy=name, servers=servers, workers=4 - servers, epochs=2, eval_every=0.0, inject=inject
        )
        found = run(config, MPI.COMM_WORLD)
        if found is not None:
            print(name, found["lost_ranks"], found["samples"] // found["train_samples"], flush=True)
"""


@pytest.mark.job
@pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")
def test_a_stopped_worker_is_reported_and_is_not_dead(job):
    done = job(4, STOPPED, ulfm=True, timeout=120)
    from psgd.strategies.catalog import STRATEGIES

    names = [name for name, strategy in STRATEGIES.items() if strategy.survives]
    assert done.stdout.splitlines() == [f"{name} [] 2" for name in names], done.stderr
    told = done.stderr.count(" is stopped, and others have waited for it for ")
    assert told == len(names), done.stderr
    assert "has not come" not in done.stderr
