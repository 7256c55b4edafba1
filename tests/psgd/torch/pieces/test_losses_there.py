"""Losses are numbers once the GPU has come there, on a simulated one that comes there when it is told to."""

import pytest
from harness.fake_gpu import FakeGpu

torch = pytest.importorskip("torch")
from psgd.torch.pieces.losses_there import LossesThere  # noqa: E402 -- where PyTorch is


class Late(FakeGpu):
    """Copies only when `arrive` is called."""

    def __init__(self):
        super().__init__()
        self.waiting = []

    def copy(self, into, source):
        self.waiting.append((into, source.copy()))

    def passed(self, event):
        return not self.waiting

    def arrive(self):
        for into, source in self.waiting:
            super().copy(into, source)
        self.waiting.clear()


def test_losses_come_behind_the_work():
    gpu = Late()
    losses = LossesThere(gpu, 3)
    for scale in (1.0, 10.0):
        losses.begin()
        assert losses.done()
        taken = [losses.take(torch.tensor(scale * k)) for k in range(3)]
        assert not losses.done()
        gpu.arrive()
        assert losses.done() and [float(each) for each in taken] == [0.0, scale, 2 * scale]
    losses.begin()
    one = losses.take(torch.tensor([0.1], dtype=torch.float64))
    gpu.arrive()
    assert float(one) == 0.1
