"""Graphs of PyTorch's work on a GPU: what is recorded runs when it is started, in the order of the streams."""

import gc

import pytest

torch = pytest.importorskip("torch")
from harness.device import cupy  # noqa: E402
from harness.torch_gpu import gpu  # noqa: E402

from psgd.torch.pieces.recorded.torch_graphs import TorchGraphs  # noqa: E402 -- where PyTorch is


@pytest.mark.gpu
def test_a_graph_runs_behind_what_was_started_and_before_what_is():
    device = gpu()
    graphs, x, found = TorchGraphs(device), torch.zeros(1 << 20, device=device), []
    outside = torch.cuda.current_stream(device)
    with graphs.aside():
        assert torch.cuda.current_stream(device) != outside
        x.add_(1).mul_(1)
        launch = graphs.record(lambda: found.append(x * 2 + 1), graphs.pool())
    for value in (3.0, 5.0):
        x.fill_(value)
        with graphs.aside():
            launch()
        assert torch.equal(found[0], torch.full_like(x, 2 * value + 1))
    with pytest.raises(ZeroDivisionError), graphs.aside():
        raise ZeroDivisionError
    assert torch.cuda.current_stream(device) == outside and len(found) == 1


class Freed:
    """Memory of the GPU in a cycle of references, which only the garbage collector frees."""

    def __init__(self, xp):
        self.itself, self.runtime = self, xp.cuda.runtime
        self.address = self.runtime.malloc(1 << 20)

    def __del__(self):
        self.runtime.free(self.address)


@pytest.mark.gpu
def test_garbage_of_the_device_does_not_spoil_a_recording():
    device, xp = gpu(), cupy()
    graphs, x, found = TorchGraphs(device), torch.ones(64, 64, device=device), []

    def function():
        y = x @ x
        for _ in range(5_000):  # several times what makes the collector look
            found.append([found])
        found.append(y @ x)

    with graphs.aside():
        function()
        torch.cuda.synchronize()
        gc.collect()
        for _ in range(50):
            Freed(xp)
        graphs.record(function, graphs.pool())()
    assert torch.equal(found[-1], x @ x @ x)
