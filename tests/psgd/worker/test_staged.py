"""A worker whose parameters are on a GPU and whose strategy is on the host: what is copied, and when."""

import importlib
import sys
import types

import numpy as np
import pytest

from psgd.worker.checkpoint_status import CheckpointStatus


@pytest.fixture
def device(monkeypatch):
    """Copies that happen only once the stream is waited for, as a GPU may make them."""
    pending = []
    fake = types.ModuleType("psgd.backend.pinned")

    def wait():
        for to, source in pending:
            to[...] = source
        pending.clear()

    fake.download = fake.upload = lambda to, source: pending.append((to, source))
    fake.wait = wait
    fake.Pin = lambda *arrays: types.SimpleNamespace(release=lambda: None)
    fake.empty = np.empty
    monkeypatch.setitem(sys.modules, "psgd.backend.pinned", fake)
    monkeypatch.delitem(sys.modules, "psgd.worker.staged", raising=False)
    yield fake
    sys.modules.pop("psgd.worker.staged", None)


class Host:
    """A client that takes plain steps and notes what it was told."""

    def __init__(self):
        self.params, self.grads = np.arange(4.0), np.zeros(4)
        self.told, self.checkpoint, self.version = [], CheckpointStatus(), 0

    def start(self):
        self.params += 10

    def step(self, samples, loss):
        self.told.append((samples, loss))
        if samples:
            self.params -= self.grads
        self.version += 1

    def finish(self):
        self.params *= 2


def test_steps_are_the_hosts(device):
    from psgd.worker.staged import Staged

    host, far = Host(), np.full(4, np.nan)
    client = Staged(host, far)
    client.checkpoint.on_reached = len
    assert host.checkpoint.on_reached is len
    client.start()
    device.wait()
    assert far.tolist() == [10, 11, 12, 13]
    client.grads[:] = [1, 2, 3, 4]
    client.step(5, 0.5)
    client.grads[:] = np.nan  # a step of no samples reads no gradient
    client.step(0, 0.0)
    device.wait()
    assert far.tolist() == [9, 9, 9, 9]
    assert host.told == [(5, 0.5), (0, 0.0)]
    assert client.version == 2
    assert client.evaluated_params is far
    client.finish()
    assert far.tolist() == [18, 18, 18, 18]


def test_by_parts_the_host_is_told_of_what_has_arrived(device, monkeypatch):
    from harness.played_bus import PlayedBus

    staged = importlib.import_module("psgd.worker.staged")

    bus = PlayedBus()
    monkeypatch.setattr(staged, "CudaBus", lambda: bus)
    host, far, told = Host(), np.zeros(4), []
    host.overlap = lambda samples: lambda part: told.append((part, host.grads[part.start : part.stop].tolist()))
    client = staged.Staged(host, far, by_parts=True)
    client.start()
    ready = client.overlap(5)
    client.grads[:] = [np.nan, 2, 3, 4]
    for part in (range(2, 4), range(2, 2), range(1, 2)):
        ready(part)
    client.grads[0] = 1  # what nobody has told of goes in `step`
    client.step(5, 0.5)
    device.wait()
    assert told == [(range(2, 4), [3, 4]), (range(1, 2), [2])]
    assert far.tolist() == [9, 9, 9, 9] and bus.bytes_down == 3 * 8
    host.overlap = lambda samples: None
    assert client.overlap(5) is None and staged.Staged(host, far).overlap(5) is None
    client.grads[:] = 1
    client.step(5, 0.5)
    device.wait()
    assert far.tolist() == [8, 8, 8, 8]
