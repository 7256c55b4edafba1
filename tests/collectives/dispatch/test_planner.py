"""From arguments to a planned call: what is wrong goes into it, and which can run in shared memory again and again."""

from types import SimpleNamespace

import numpy as np
import pytest
from harness.oracle import communicator
from mpi4py import MPI

from psgd.collectives.arguments import parse
from psgd.collectives.arguments.call import Call
from psgd.collectives.dispatch.planner import CallPlan, Planner
from psgd.kernels.errors import UsageError


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
def test_what_is_wrong_goes_to_the_others_and_alone_it_is_raised(comm):
    def wrong():
        raise UsageError("sendbuf: no buffer")

    with communicator(comm) as c:
        if comm.size == 1:
            with pytest.raises(UsageError, match="sendbuf: no buffer"):
                c._planner.plan("Bcast", wrong, None, None)
        else:
            plan = c._planner.plan("Bcast", wrong, None, None)
            assert (plan.call, plan.text) == (None, "Bcast: sendbuf: no buffer")
            odd = c._planner.plan("Bcast", lambda: 1 / 0, None, None)
            assert odd.text == "Bcast: ZeroDivisionError('division by zero')"


@pytest.mark.ranks(2)
def test_a_users_table_holds_where_it_names_what_there_is(comm):
    with communicator(comm, PSGD_SHARED="0") as c:
        mine = [(1000.0, "native"), (float("inf"), "ring")]
        assert Planner(c._engine, {"allreduce": mine, "Allreduce": mine}, False).limits_of("Allreduce") == mine
        away = [(float("inf"), "slots")]
        other = Planner(c._engine, {"allreduce": away, "Allreduce": away}, False)
        assert other.limits_of("Allreduce") == c._planner.limits_of("Allreduce")


def engine(**more):
    return SimpleNamespace(**{"local": True, "checks": False, "size": 2} | more)


def test_what_runs_in_shared_memory():
    x = np.ones(4)

    def plan(algorithm="slots", verb="Allreduce", **more):
        call = Call(verb, send=x, recv=x, count=4)
        for name, value in more.items():
            setattr(call, name, value)
        return CallPlan(verb, call, "", algorithm)

    assert plan().in_shared_memory(engine()) and plan("?", "Barrier").in_shared_memory(engine())
    for other in (plan("ring"), plan(copied=True), plan(job="on a GPU"), CallPlan("Allreduce", None, "wrong")):
        assert not other.in_shared_memory(engine())
    assert not plan().in_shared_memory(engine(local=False)) and not plan().in_shared_memory(engine(checks=True))
