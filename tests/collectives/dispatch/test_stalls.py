"""What a waiting rank sees and says, by a clock and reports of the test; `test_communicator_jobs.py` has jobs."""

from types import SimpleNamespace

import numpy as np
import pytest

from psgd.collectives.arguments import descriptor
from psgd.collectives.dispatch import stalls
from psgd.collectives.dispatch.errors import WAITING
from psgd.collectives.dispatch.stalls import StallWatchdog
from psgd.collectives.mpi.agreement import Mismatch
from psgd.collectives.shm import layout
from psgd.kernels.errors import PeerLostError


class Control:
    def __init__(self):
        self.failed, self.sent, self.here = False, [], []

    def poll(self):
        return self.failed

    def send(self, kind, descriptor):
        self.sent.append((kind, int(descriptor[layout.CALL])))

    def waiting(self, call):
        return self.here


@pytest.fixture
def made(monkeypatch, capsys):
    """A watchdog of rank 0 of 3, its control, a clock to set, and what was printed."""
    clock = [100.0]
    monkeypatch.setattr(stalls.time, "perf_counter", lambda: clock[0])

    def make(shared=None, published=False, stall_s=1.0, rank=0):
        words = np.zeros(layout.DESCRIPTOR_WORDS, np.int64)
        descriptor.fill(words, descriptor.signature("Allreduce", "float64"), 9, (9,), 0)
        control, channel = Control(), SimpleNamespace(polled=0)
        channel.poll = lambda: setattr(channel, "polled", channel.polled + 1)
        comm = SimpleNamespace(rank=rank, size=3)
        watchdog = StallWatchdog(comm, control, (channel,), shared, words, published, stall_s, 1e9)
        watchdog.begin(5)

        def after(seconds):
            clock[0] += seconds
            watchdog()
            return capsys.readouterr().err

        return SimpleNamespace(dog=watchdog, control=control, channel=channel, after=after)

    return make


def node(lost=(), aborted=-1, behind=(), size=3):
    ranks = SimpleNamespace(size=size, rank=0, ranks=list(range(size)), lost=lambda: list(lost))
    return SimpleNamespace(node=ranks, aborted=lambda: aborted, behind=lambda: list(behind))


def test_each_look_makes_progress(made):
    one = made()
    for _ in range(3):
        one.after(0.01)
    assert one.channel.polled == 3


def test_over_messages_the_missing_are_named_once_after_they_could_report(made):
    one = made()
    one.after(0.0)
    assert one.after(1.2) == "" and one.control.sent == [(WAITING, 5)]
    one.control.here = [1]
    text = one.after(2.5)
    assert text.startswith("psgd: warning: Allreduce(float64, 9 elements") and "rank 2 has not come for 4 s" in text
    assert one.after(3.0) == "" and one.control.sent == [(WAITING, 5)]
    one.dog.begin(6)
    one.after(0.1), one.after(1.2)
    assert one.control.sent == [(WAITING, 5), (WAITING, 6)]


def test_in_shared_memory_they_are_seen_at_once(made):
    one = made(node(behind=[1, 2]), published=True)
    one.after(0.0)
    assert "ranks 1-2 have not come for 1 s" in one.after(1.2)
    assert one.control.sent == []


def test_only_the_first_that_is_there_says_so(made):
    one = made(node(behind=[2]), published=True, rank=1)
    one.after(0.0)
    assert one.after(1.2) == ""


@pytest.mark.parametrize(
    ("shared", "words"), [(node(lost=[2]), "rank 2 ended"), (node(aborted=1), "rank 1 left a call in the middle")]
)
def test_a_rank_that_is_gone_is_an_error(made, shared, words):
    one = made(shared, published=True)
    one.after(0.0)
    with pytest.raises(PeerLostError, match=words):
        one.after(0.2)


def test_a_report_of_a_failure_ends_the_wait(made):
    one = made()
    one.control.failed = True
    with pytest.raises(Mismatch):
        one.after(0.0)
    here = made(node(), published=True)  # shared memory tells by itself
    here.control.failed = True
    here.after(0.0)
