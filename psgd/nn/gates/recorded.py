"""The passes of layers on a GPU, each recorded as a CUDA graph and started by one call.

Starting a layer's kernels one by one takes the host longer than small ones run, and longer still where other threads
want the interpreter meanwhile.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from psgd.kernels.array import Array, address
from psgd.kernels.layers.draws import Draws
from psgd.nn.gates.left_behind import LeftBehind, noted, put_back
from psgd.nn.layer import Arrays, Layer, Room

Launcher = Callable[[Callable[[], object]], Callable[[], None]]
"""Records what a function starts, which does not run meanwhile; returns what starts that."""
Key = tuple[Any, ...]


class PythonPasses(Protocol):
    """What layers do in one context: `psgd.nn.sequential.Inner`, or a single layer with its state."""

    def forward(self, x: Array, params: Arrays) -> Array:
        """Returns the output."""

    def backward(self, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """Overwrites `grads`, and returns the input's gradient."""


@dataclass(frozen=True)
class LayerPasses:
    """Those of one layer. Implements `PythonPasses`.

    Attributes:
        layer: the layer.
        state: its own in the context.
    """

    layer: Layer[Any]
    state: Any

    def forward(self, x: Array, params: Arrays) -> Array:
        return self.layer.forward(self.state, x, params)

    def backward(self, dy: Array, params: Arrays, grads: Arrays) -> Array:
        return self.layer.backward(self.state, dy, params, grads)


class RecordedPasses:
    """The passes of layers in a context for training. Implements `PythonPasses`.

    A pass is run by Python the first time, when kernels are compiled and memory is taken, recorded the second time, and
    started as recorded from then on. Which pass it is, the places of all that it reads and writes say.

    Args:
        passes: run by Python.
        states: what the layers keep, as `left_behind.noted` takes it.
        draws: of the context.
        launcher: records.

    Attributes:
        states: as given.
    """

    def __init__(self, passes: PythonPasses, states: Any, draws: Draws, launcher: Launcher) -> None:
        self._passes, self._draws, self._launcher = passes, draws, launcher
        self.states = states
        self._launches: dict[Key, Callable[[], None] | None] = {}
        self._results: dict[Key, Array] = {}
        self._left: dict[Key, LeftBehind] = {}
        self._forward: Key = ()
        self._by_python = True

    def forward(self, x: Array, params: Arrays) -> Array:
        """As the layers'."""
        key = "F", len(x), self._draws.on, *map(address, (x, *params))
        by_python = self._launches.get(key) is None
        y = self._do(key, lambda: self._passes.forward(x, params))
        if by_python and self._launches[key] is not None:
            self._left[key] = noted(self.states)
        self._forward, self._by_python = key, by_python
        return y

    def backward(self, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """As the layers'."""
        key = "B", *map(address, (dy, *params, *grads)), *self._forward
        return self._do(key, lambda: self._passes.backward(dy, params, grads))

    def _do(self, key: Key, run: Callable[[], Array]) -> Array:
        def kept() -> None:
            self._results[key] = run()

        launch = self._launches.get(key)
        if launch is None:
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
        return self._results[key]


def recorded(passes: PythonPasses, states: Any, room: Room, launcher: Launcher | None) -> PythonPasses:
    """Returns what records these passes, or themselves: without a launcher, and in a context that is not for training.

    Args:
        passes: run by Python.
        states: as `RecordedPasses`.
        room: of the context.
        launcher: records.
    """
    if launcher is None or room.draws is None or not room.trains:
        return passes
    return RecordedPasses(passes, states, room.draws, launcher)
