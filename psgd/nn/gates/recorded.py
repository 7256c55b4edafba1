"""The passes of one layer on a GPU, each recorded as a CUDA graph and started by one call.

Starting a layer's kernels one by one takes the host longer than small ones run, and longer still where other threads
want the interpreter meanwhile.
"""

from collections.abc import Callable
from typing import Any

from psgd.kernels.array import Array
from psgd.kernels.layers.draws import Draws
from psgd.nn.gates.left_behind import LeftBehind, noted, put_back
from psgd.nn.layer import Arrays, Layer

Launcher = Callable[[Callable[[], object]], Callable[[], None]]
"""Records what a function starts, which does not run meanwhile; returns what starts that."""
Key = tuple[Any, ...]


class RecordedPasses:
    """What a layer has in a context for training.

    A pass is run by Python the first time, when kernels are compiled and memory is taken, recorded the second time, and
    started as recorded from then on. Which pass it is, the places of all that it reads and writes say.

    Args:
        state: the layer's own.
        draws: of the context.
        launcher: records.
    """

    def __init__(self, state: Any, draws: Draws, launcher: Launcher) -> None:
        self._state, self._draws, self._launcher = state, draws, launcher
        self._launches: dict[Key, Callable[[], None] | None] = {}
        self._results: dict[Key, Array] = {}
        self._left: dict[Key, LeftBehind] = {}
        self._forward: Key = ()
        self._by_python = True

    def forward(self, layer: Layer[Any], x: Array, params: Arrays) -> Array:
        """As the layer's."""
        key = "F", len(x), self._draws.on, *map(_address, (x, *params))
        y, by_python, recorded = self._do(key, lambda: layer.forward(self._state, x, params))
        if by_python and recorded:
            self._left[key] = noted(self._state)
        self._forward, self._by_python = key, by_python
        return y

    def backward(self, layer: Layer[Any], dy: Array, params: Arrays, grads: Arrays) -> Array:
        """As the layer's."""
        key = "B", *map(_address, (dy, *params, *grads)), *self._forward
        return self._do(key, lambda: layer.backward(self._state, dy, params, grads))[0]

    def _do(self, key: Key, run: Callable[[], Array]) -> tuple[Array, bool, bool]:
        """Returns also whether Python ran it, and whether there is a graph of it."""

        def kept() -> None:
            self._results[key] = run()

        launch = self._launches.get(key)
        by_python = launch is None
        if by_python:
            if not self._by_python:
                put_back(self._left[self._forward])
                self._by_python = True
            if key in self._launches:
                launch = self._launches[key] = self._launcher(kept)
            else:
                self._launches[key] = None
                kept()
        if launch is not None:
            launch()
        return self._results[key], by_python, launch is not None


def _address(array: Array) -> int:
    """Where an array begins, on the GPU or on the host."""
    on_gpu = getattr(array.data, "ptr", None)
    return int(array.ctypes.data if on_gpu is None else on_gpu)
