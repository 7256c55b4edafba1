"""What goes between the GPU and an order on the host, with NumPy in the GPU's place."""

import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest


class Pin:
    def __init__(self, *arrays):
        self.arrays, self.released = arrays, False

    def release(self):
        self.released = True


class Order:
    """An order that remembers what it was called with."""

    def __init__(self, context, *more):
        self.context, self.more, self.version = context, more, 7
        self.displacement, self.centre = np.zeros(3), np.array([4.0, 5.0, 6.0])
        self.calls = []

    def begin(self, resumed):
        self.calls.append(("begin", self.context.params.tolist()))
        self.context.params[:] = 9.0

    def note(self, samples, loss):
        self.calls.append(("note", samples, type(loss)))

    def pull(self, rate, lr):
        self.calls.append(("pull", self.context.params.tolist(), rate, lr))
        self.displacement[:] = [1.0, 2.0, 3.0]

    def finish(self, waited_s):
        self.calls.append(("finish", waited_s))


@dataclass(frozen=True)
class Context:
    params: np.ndarray


@pytest.fixture
def on_gpu(monkeypatch):
    def copy(to, source):
        to[:] = source

    fake = SimpleNamespace(empty=np.empty, upload=copy, download=copy, wait=lambda: None, Pin=Pin)
    import psgd.backend

    monkeypatch.setitem(sys.modules, "psgd.backend.pinned", fake)
    monkeypatch.setattr(psgd.backend, "pinned", fake, raising=False)
    monkeypatch.delitem(sys.modules, "psgd.strategies.easgd.on_gpu", raising=False)
    from psgd.strategies.easgd import on_gpu

    yield on_gpu
    sys.modules.pop("psgd.strategies.easgd.on_gpu", None)


def test_the_order_works_on_a_copy_and_its_pull_comes_back(on_gpu):
    there = np.array([1.0, 2.0, 3.0])
    made = on_gpu.OnHost(Context(there), "cuts", 4, order=Order)
    order = made._order
    assert order.more == ("cuts", 4) and order.context.params is not there
    made.begin(False)
    assert there.tolist() == [9.0] * 3, "worker 0's parameters came to the GPU"
    there[:] = [7.0, 8.0, 9.0]
    made.note(5, np.float32(0.5))
    made.pull(0.25, 0.5)
    assert made.displacement.tolist() == [1.0, 2.0, 3.0]
    assert there.tolist() == [7.0, 8.0, 9.0], "the worker takes the displacement after its step"
    assert made.centre.tolist() == [4.0, 5.0, 6.0] and made.version == 7
    made.finish(1.5)
    assert made._pins.released and made._pins.arrays[0] is order.displacement
    assert order.calls == [
        ("begin", [1.0, 2.0, 3.0]),
        ("note", 5, float),
        ("pull", [7.0, 8.0, 9.0], 0.25, 0.5),
        ("finish", 1.5),
    ]
