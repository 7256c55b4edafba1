"""What goes between a GPU and a worker on the host, with NumPy in the GPU's place."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest


class Inner:
    def __init__(self, evaluated=None):
        self.params, self.grads, self.steps = np.arange(3.0), np.zeros(3), []
        self.version = 5
        if evaluated is not None:
            self.evaluated_params = evaluated

    def start(self):
        self.params += 10

    def step(self, samples, loss):
        self.steps.append((samples, loss, self.grads.tolist()))
        self.params -= self.grads

    def finish(self):
        self.params[:] = 99.0


class Pin:
    def __init__(self, *arrays):
        self.arrays, self.released = arrays, False

    def release(self):
        self.released = True


@pytest.fixture
def staged(monkeypatch):
    def copy(to, source):
        to[:] = source

    fake = SimpleNamespace(empty=np.empty, upload=copy, download=copy, wait=lambda: None, Pin=Pin)
    import psgd.backend

    monkeypatch.setitem(sys.modules, "psgd.backend.pinned", fake)
    monkeypatch.setattr(psgd.backend, "pinned", fake, raising=False)
    monkeypatch.delitem(sys.modules, "psgd.worker.staged", raising=False)
    from psgd.worker import staged

    yield staged
    sys.modules.pop("psgd.worker.staged", None)


def test_gradients_go_down_and_parameters_come_back(staged):
    inner, there = Inner(), np.full(3, np.nan)
    worker = staged.Staged(inner, there)
    worker.start()
    assert there.tolist() == [10, 11, 12] and worker.grads.tolist() == [0, 0, 0]
    worker.grads[:] = 1.0
    worker.step(4, np.float32(0.5))
    assert inner.steps == [(4, 0.5, [1.0, 1.0, 1.0])] and there.tolist() == [9, 10, 11]
    worker.grads[:] = np.nan
    worker.step(0, 0.0)  # without samples the gradient is not read
    assert inner.steps[1][2] == [1.0, 1.0, 1.0]
    assert worker.version == 5 and worker.evaluated_params is there and worker.overlap(3) is None
    worker.finish()
    assert there.tolist() == [99.0] * 3 and worker._pins.released


def test_the_first_host_vector_is_a_copy(staged):
    source = np.arange(4.0)
    host = staged.host_copy(source)
    assert host.tolist() == source.tolist() and not np.shares_memory(host, source)
