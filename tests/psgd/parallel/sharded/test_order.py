"""On the host there is nothing to order; on a GPU, a stream beside the caller's waits for it, and it for that."""

import contextlib

import numpy as np
import pytest

from psgd.parallel.sharded import order
from psgd.parallel.sharded.order import behind, ordered, settle


class Played(order.SideStream):
    """A side stream that notes what is put on which stream."""

    def __init__(self):
        self.did, self.last = [], None

    def __call__(self):
        return contextlib.nullcontext()

    def event(self):
        return Event(self)

    def follow(self, event):
        self.did.append("follow")


class Event:
    def __init__(self, side):
        self.record = lambda: side.did.append("record")


class Call:
    """A persistent call that can be put on a stream or not."""

    def __init__(self, side, enqueues):
        self.side, self.enqueues = side, enqueues

    def __getattr__(self, name):
        return lambda: self.side.did.append(name)

    def Enqueue(self):
        return self.enqueues


def test_nothing_on_the_host():
    here = behind(np.zeros(1))
    with here():
        pass
    calls = [object()]
    assert ordered(here, calls) is calls
    settle(here)


def test_the_host_waits_for_what_was_put_on_the_stream_once():
    side = Played()
    first, second, third = ordered(side, [Call(side, True), Call(side, True), Call(side, False)])
    for call in (first, second):
        call.Start()
    first.Wait()
    third.Start()
    third.Wait()
    for call in (first, second, third):
        call.Wait()  # where nothing was started since, nothing happens
    assert side.did == ["record", "record", "follow", "Start", "Wait", "follow"]
    settle(side)
    settle(side)
    assert side.did[6:] == ["Wait"]
    second.Start()
    second.Free()
    settle(side)
    assert side.did[7:] == ["record", "Free"]


def test_a_stream_of_its_own_on_a_gpu():
    cupy = pytest.importorskip("cupy")
    order = behind(cupy.zeros(1))
    before = cupy.cuda.get_current_stream()
    with order():
        assert cupy.cuda.get_current_stream() != before
    assert cupy.cuda.get_current_stream() == before
