"""What a waiting rank sees and says, by a clock and reports of the test; `test_communicator_jobs.py` has jobs."""

from types import SimpleNamespace

import numpy as np
import pytest

from psgd.collectives.arguments import descriptor
from psgd.collectives.dispatch import stalls
from psgd.collectives.dispatch.stalls import StallWatchdog
from psgd.collectives.mpi.agreement import Mismatch
from psgd.collectives.shm import layout
from psgd.kernels.errors import PeerLostError


class Control:
    def __init__(self):
        self.failed = False
        self.later = False  # the failure is in a call after the current one

    def poll(self):
        return self.failed

    def concerns(self, call):
        return not self.later


class Waits:
    def __init__(self, lane):
        self.lane, self.compared, self.others = lane, [], set()

    def begin(self, call):
        self.compared.append(call)

    def compare(self, blocked):
        self.compared.append(blocked)

    def here(self):
        return self.others


@pytest.fixture
def made(monkeypatch, capsys):
    """A watchdog of rank 0 of 3, its control, a clock to set, and what was printed."""
    clock = [100.0]
    monkeypatch.setattr(stalls.time, "perf_counter", lambda: clock[0])

    def make(shared=None, published=False, stall_s=1.0, rank=0, lane=0):
        words = np.zeros(layout.DESCRIPTOR_WORDS, np.int64)
        descriptor.fill(words, descriptor.signature("Allreduce", "float64"), 9, (9,), 0)
        control, waits, channel = Control(), Waits(lane), SimpleNamespace(polled=0)
        channel.poll = lambda: setattr(channel, "polled", channel.polled + 1)
        comm = SimpleNamespace(rank=rank, size=3)
        watchdog = StallWatchdog(comm, control, waits, (channel,), shared, words, published, stall_s, 1e9)
        watchdog.begin(5)

        def after(seconds, at_once=False):
            while seconds > 0.6 and not at_once:
                clock[0] += 0.6
                seconds -= 0.6
                watchdog()
            clock[0] += seconds
            watchdog()
            return capsys.readouterr().err

        return SimpleNamespace(dog=watchdog, control=control, waits=waits, channel=channel, after=after)

    return make


def node(lost=(), left=(), behind=(), size=3, met=False):
    ranks = SimpleNamespace(size=size, rank=0, ranks=list(range(size)), lost=lambda: list(lost))
    return SimpleNamespace(node=ranks, left=lambda patient: list(left), behind=lambda: list(behind), met=met)


def test_each_look_makes_progress(made):
    one = made()
    for _ in range(3):
        one.after(0.01)
    assert one.channel.polled == 3


def test_over_messages_the_missing_are_named_once_after_they_could_report(made):
    one = made()
    one.after(0.0)
    assert one.after(1.2) == ""
    one.waits.others = {1}
    text = one.after(2.5)
    assert text.startswith("psgd: warning: Allreduce(float64, 9 elements") and "rank 2 has not arrived for 4 s" in text
    assert one.after(3.0) == ""


def test_ranks_compare_their_calls_long_before_a_stall_is_reported(made):
    one = made(stall_s=30.0)
    one.after(0.0), one.after(0.5)
    assert one.waits.compared == [5]  # the call's beginning
    one.after(0.6), one.after(0.6)
    one.dog.blocked = False
    one.after(0.6)
    one.dog.begin(6)
    one.after(0.6)
    assert one.waits.compared == [5, True, True, False, 6]


def test_of_a_request_a_rank_may_have_come_without_a_word(made):
    one = made(lane=1)
    one.waits.others = {1}
    one.after(0.0), one.after(1.2)
    assert "rank 2 has not arrived, or not tested its request, for 4 s" in one.after(2.5)


def test_in_shared_memory_they_are_seen_at_once(made):
    one = made(node(behind=[1, 2]), published=True)
    one.after(0.0)
    assert "ranks 1-2 have not arrived for 1 s" in one.after(1.2)


def test_who_has_come_and_does_nothing_more_is_not_said_to_be_missing(made):
    one = made(node(behind=[2], met=True), published=True)
    one.after(0.0)
    assert "rank 2 has arrived, but made no progress for 1 s" in one.after(1.2)


def test_the_time_in_which_this_rank_was_stopped_was_no_waiting(made):
    one = made(node(behind=[2]), published=True)
    one.after(0.0), one.after(0.5)
    assert one.after(100.0, at_once=True) == ""
    assert "rank 2 has not arrived for 1 s" in one.after(0.6)


def test_only_the_first_that_is_there_says_so(made):
    one = made(node(behind=[2]), published=True, rank=1)
    one.after(0.0)
    assert one.after(1.2) == ""


@pytest.mark.parametrize(
    ("shared", "words"), [(node(lost=[2]), "rank 2 ended"), (node(left=[1]), "rank 1 left a call before its end")]
)
def test_a_rank_that_is_gone_is_an_error(made, shared, words):
    one = made(shared, published=True)
    one.after(0.0)
    with pytest.raises(PeerLostError, match=words):
        one.after(0.2)


def test_a_report_of_a_failure_ends_the_wait(made):
    one = made()
    one.control.failed = one.control.later = True
    one.after(0.0)
    one.control.later = False
    with pytest.raises(Mismatch):
        one.after(0.0)
    here = made(node(), published=True)
    here.control.failed = True
    with pytest.raises(Mismatch):
        here.after(0.0)
