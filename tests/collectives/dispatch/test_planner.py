"""From arguments to a planned call: what is wrong goes into it, and which can run in shared memory again and again."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
from harness.oracle import communicator, operation
from mpi4py import MPI

from psgd.collectives.arguments import parse
from psgd.collectives.arguments.call import Call
from psgd.collectives.dispatch import tuning
from psgd.collectives.dispatch.planner import CallPlan, Planner
from psgd.kernels.errors import AgreedUsageError, UsageError


@pytest.mark.ranks(1, 2)
def test_a_call_is_planned_by_the_limits(comm):
    x, y = np.ones(100), np.zeros(100)
    with communicator(comm) as c:
        plan = c._planner.plan("Allreduce", lambda: parse.allreduce(comm.size, comm.rank, x, y, MPI.SUM), None, None)
        assert plan.call.count == 100 and plan.text == "" and plan.sign
        named = c._planner.plan(
            "Allreduce", lambda: parse.allreduce(comm.size, comm.rank, x, y, MPI.SUM), "native", None
        )
        assert named.algorithm == "native" and named.sign != plan.sign
        assert c._planner.limits_of("Allreduce") is c._planner.limits_of("Allreduce")


@pytest.mark.ranks(1, 2)
def test_what_is_wrong_goes_to_the_others_and_on_one_rank_is_the_same_error(comm):
    def wrong():
        raise UsageError("sendbuf: no buffer")

    with communicator(comm) as c:
        plan = c._planner.plan("Bcast", wrong, None, None)
        assert (plan.call, plan.text) == (None, "Bcast: sendbuf: no buffer")
        odd = c._planner.plan("Bcast", lambda: 1 / 0, None, None)
        assert odd.text == "Bcast: ZeroDivisionError('division by zero')"
        for way in (plan.steps, plan.agreement):
            with pytest.raises(AgreedUsageError, match=r"^Bcast: sendbuf: no buffer$"):
                c._engine.run(way(c._engine))
        c.Barrier()


@pytest.mark.ranks(2)
def test_a_users_table_holds_where_it_names_what_there_is(comm):
    with communicator(comm, PSGD_SHARED="0") as c:
        mine = [(1000.0, "native"), (float("inf"), "ring")]
        assert Planner(c._engine, {"allreduce": mine, "Allreduce": mine}, False).limits_of("Allreduce") == mine
        away = [(float("inf"), "slots")]
        other = Planner(c._engine, {"allreduce": away, "Allreduce": away}, False)
        assert other.limits_of("Allreduce") == c._planner.limits_of("Allreduce")


FUNCTIONS = {"SUM": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum, "mean": np.add}
EXACT = [("SUM", "float32"), ("mean", "float64"), ("MIN", "int32"), ("MAX", "uint64"), ("PROD", "complex64")]
OTHER = [(op, kind) for op in ("SUM", "PROD", "MIN", "MAX") for kind in ("int8", "uint8", "int16", "uint16")]
OTHER += [(op, kind) for op in ("MIN", "MAX") for kind in ("float16", "float32", "float64")]


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("verb", ["Allreduce", "Reduce"])
@pytest.mark.parametrize("shared", ["1", "0"])
def test_a_users_table_sends_nothing_to_mpi_that_comes_back_otherwise(comm, tmp_path, verb, shared):
    entry = {"collective": verb, "ranks": comm.size, "nodes": 1, "limits": [[None, "native"]]}
    if comm.rank == 0:
        tuning.write(tmp_path / "table.json", entry)
    with communicator(comm, PSGD_SHARED=shared, PSGD_TUNING=str(tmp_path / "table.json")) as c:
        for (op, kind), native in [*((each, True) for each in EXACT), *((each, False) for each in OTHER)]:
            mine = [np.full(257, 60 + r, kind) for r in range(comm.size)]
            got = np.zeros(257, kind)
            getattr(c, verb)(mine[comm.rank], got, operation(op))
            wanted = functools.reduce(FUNCTIONS[op], mine)  # small integers wrap around
            assert comm.rank or np.array_equal(got, wanted / comm.size if op == "mean" else wanted), (op, kind)
            assert (c.last[0] == "native") == native, (op, kind, c.last)
        nan = np.full(40, 1.0 + comm.rank)
        nan[comm.rank] = np.nan
        getattr(c, verb)(nan.copy(), nan, MPI.MIN)
        assert comm.rank or (np.isnan(nan[: comm.size]).all() and (nan[comm.size :] == 1).all())


def engine(**more):
    return SimpleNamespace(**{"published": True, "size": 2} | more)


def test_what_runs_in_shared_memory():
    x = np.ones(4)

    def plan(algorithm="slots", verb="Allreduce", **more):
        call = Call(verb, send=x, recv=x, count=4)
        for name, value in more.items():
            setattr(call, name, value)
        return CallPlan(verb, call, "", algorithm)

    assert plan().repeats(engine()) and plan("?", "Barrier").repeats(engine())
    for other in (plan("ring"), plan(copied=True), plan(job="on a GPU"), CallPlan("Allreduce", None, "wrong")):
        assert not other.repeats(engine())
    assert not plan().repeats(engine(published=False))
    assert plan(copied=True).in_memory(engine()) and not plan("ring").in_memory(engine())
