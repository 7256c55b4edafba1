"""CUDA graphs: kernels that a function starts are recorded once, and started by one call from then on."""

import functools
import os
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np

from psgd.kernels.device import blas
from psgd.kernels.memory.gc_paused import gc_paused


def wanted() -> bool:
    """Whether graphs are to be used: `PSGD_CUDA_GRAPHS=0` in the environment switches them off."""
    return os.environ.get("PSGD_CUDA_GRAPHS", "1") != "0"


def launcher() -> "Callable[[Callable[[], object]], Callable[[], None]] | None":
    """Returns what records a function for the current stream and gives what starts that there; None: no graphs.

    A function has run before, as `GraphRecorder.record` wants it. Nothing is made until the first is recorded.
    """
    if not wanted():
        return None
    recorder = functools.cache(GraphRecorder)

    def launch(function: Callable[[], object]) -> Callable[[], None]:
        graph = recorder().record(function)
        return lambda: graph.launch(cupy.cuda.get_current_stream())

    return launch


class GraphRecorder:
    """Records on a stream of its own, on the current GPU, what is to run on the current stream."""

    def __init__(self) -> None:
        self._stream, runs = cupy.cuda.Stream(non_blocking=True), cupy.cuda.get_current_stream()
        blas.borrow_workspace(self._stream, runs)
        runs.synchronize()  # it may be using the workspace
        with self._stream:
            one = cupy.ones((1, 1), np.float32)
            blas.matmul(one, one, cupy.empty_like(one))
            self._stream.synchronize()

    def record(self, function: Callable[[], object]) -> Any:
        """Returns a graph of what `function` starts, which does not run now; `graph.launch(stream)` runs it.

        Args:
            function: has run before, so that nothing has to be compiled or allocated; waits for nothing.
        """
        with self._stream, gc_paused():
            self._stream.begin_capture()
            try:
                function()
            finally:
                graph = self._stream.end_capture()
        graph.upload(cupy.cuda.get_current_stream())
        return graph
