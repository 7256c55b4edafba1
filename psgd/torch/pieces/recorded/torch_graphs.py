"""CUDA graphs of what PyTorch starts on one stream: recorded once, in memory of their own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from psgd.kernels.memory.gc_paused import gc_paused


class TorchGraphs:
    """A stream of its own, on which passes run and are recorded.

    Autograd adds to gradients on the stream on which it has first seen a parameter in a graph: so all passes with
    graphs must be on the stream that records.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, PyTorch's current stream is this one: behind the current one, and what comes next is behind it."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            current.wait_stream(self._stream)

    def pool(self) -> object:
        """Makes memory for graphs that belong together: a later one may use what an earlier one has left."""
        return torch.cuda.graph_pool_handle()

    def record(self, function: Callable[[], object], pool: object) -> Callable[[], None]:
        """Records what a function starts, inside `aside`; returns what starts that on the current stream.

        Waits for the GPU.

        Args:
            function: waits for nothing.
            pool: of `pool`.
        """
        graph = torch.cuda.CUDAGraph()
        how = {"pool": pool, "stream": self._stream, "capture_error_mode": "thread_local"}
        with gc_paused(), torch.cuda.graph(graph, **how):
            function()
        return graph.replay  # type: ignore[no-any-return]
