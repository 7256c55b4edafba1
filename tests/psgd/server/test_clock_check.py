"""Each push is the next one of its worker; else all ranks raise the same ContractError, whatever the strategy."""

import numpy as np
import pytest

import psgd
from psgd.kernels.errors import ContractError
from psgd.server.clock_check import ClockCheck
from psgd.server.wire import Header, MessageKind
from psgd.strategies.catalog import STRATEGIES
from psgd.worker.push_pull import PushPullWorker

SERVED = [name for name, strategy in STRATEGIES.items() if strategy.servers]


def push(number=3, version=7, samples=8, position=28, **fields):
    return Header(worker=1, push=number, version=version, samples=samples, position=position, **fields)


@pytest.fixture
def clocks():
    """Worker 1 has pushed twice, has drawn 20 samples, and was answered with version 7."""
    made = ClockCheck(2, 0)
    made.restore([0, 2], [0, 20])
    made.versions[1] = 7
    return made


def test_the_next_push_is_taken_once(clocks):
    clocks.take(push())
    with pytest.raises(ContractError, match=r"sent push 3 .* expected push 4 on version 7 after 28 drawn"):
        clocks.take(push())
    clocks.versions[1] = 9
    clocks.take(push(4, 9, 0, 28))
    clocks.check(push(4))


@pytest.mark.parametrize("wrong", [{"number": 2}, {"number": 4}, {"version": 6}, {"version": 8}, {"version": 1 << 62}])
def test_no_other_push_is_taken(clocks, wrong):
    with pytest.raises(ContractError, match="server 0: worker 1 sent push"):
        clocks.take(push(**wrong))
    clocks.take(push())  # nothing was noted


@pytest.mark.parametrize("position", [20, 27, 29, 1 << 62])
def test_samples_drawn_are_those_behind_the_gradients(clocks, position):
    with pytest.raises(ContractError, match="8 samples, "):
        clocks.take(push(position=position))


def test_a_gradient_that_was_left_out_counts_as_drawn(clocks):
    clocks.take(push(samples=0, position=28, dropped=True))
    with pytest.raises(ContractError):
        clocks.take(push(number=4, samples=0, position=27, dropped=True))


@pytest.mark.parametrize("number", [1, 3])
def test_a_worker_that_ends_has_pushed_as_often_as_pushes_came(clocks, number):
    with pytest.raises(ContractError, match=f"says that it has pushed {number} times, expected 2"):
        clocks.check(push(number))


WRONG = {
    "repeated": {"_pushes": -1},
    "skipped": {"_pushes": 1},
    "from the future": {"version": 3},
    "from the past": {"version": -1},
    "samples lost": {"_drawn": -1},
}


def trains(comm, step, changes, **options):
    """Worker 1 says something else before its step of that number; without steps left, before its end."""
    with psgd.connect(comm, np.zeros(100), lr=0.1, **options) as ps:
        for now in range(6):
            if ps.worker == 1 and now == step:
                for name, change in changes.items():
                    setattr(ps._client, name, getattr(ps._client, name) + change)
            if now < 5:
                ps.grads[:] = 1.0
                ps.step(4)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("strategy", SERVED)
@pytest.mark.parametrize("compress", ["none", "topk"])
def test_all_ranks_raise_the_same_error(comm, strategy, compress):
    for changes in WRONG.values():
        with pytest.raises(ContractError, match=r"worker 1 sent push .* repeated, lost or changed") as caught:
            trains(comm, 3, changes, strategy=strategy, servers=2, compress=compress)
        # Either server may find it first, and each rank hears of one of them.
        assert len({each.partition(":")[2] for each in comm.allgather(str(caught.value))}) == 1


@pytest.mark.ranks(3)
@pytest.mark.parametrize("strategy", SERVED)
def test_a_push_that_never_came_is_found_at_the_end(comm, strategy):
    with pytest.raises(ContractError, match="worker 1 says that it has pushed 6 times, expected 5"):
        trains(comm, 5, {"_pushes": 1}, strategy=strategy)


@pytest.mark.ranks(3)
def test_a_worker_begins_as_it_should(comm):
    real = PushPullWorker.start
    if comm.rank == 2:
        PushPullWorker.start = lambda worker: worker.transport.exchange(MessageKind.PUSH, False)
    try:
        with pytest.raises(ContractError, match="worker 1 sent kind 3 at the start, expected 2, once"):
            trains(comm, 9, {})
    finally:
        PushPullWorker.start = real
