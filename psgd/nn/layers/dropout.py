"""Dropout: in training some elements become 0, drawn by key."""

from dataclasses import dataclass

from psgd.kernels.array import Array, array_module
from psgd.kernels.errors import UsageError
from psgd.kernels.layers.draws import Draws, drop, threshold
from psgd.nn.layer import Arrays, Layer, Room, Shape


@dataclass
class DropoutState:
    """The output of one context, by what it draws, and this layer's word for it."""

    y: Array
    draws: Draws
    stream: int


@dataclass(frozen=True)
class Dropout(Layer[DropoutState]):
    """Each element becomes 0 with probability `rate`, and 1 / (1 - rate) times itself otherwise.

    What is dropped depends on what `Context.draw` was given, on the element, and on the layer's name in the whole
    model: not on the batch, the ranks or the cut. Before any `draw`, and in evaluation, nothing is.

    Attributes:
        rate: from 0 to less than 1.
    """

    rate: float
    name = "dropout"

    def output_shape(self, shape: Shape) -> Shape:
        if not 0 <= self.rate < 1:
            raise UsageError(f"Dropout: expected a rate from 0 to less than 1, got {self.rate}")
        return shape

    def allocate(self, room: Room) -> DropoutState:
        draws = Draws(room.xp, room.batch) if room.draws is None else room.draws
        y = room.empty(*room.shape) if room.trains else None  # else nothing is drawn
        return DropoutState(y, draws, draws.stream(room.name))

    def forward(self, state: DropoutState, x: Array, params: Arrays) -> Array:
        if not state.draws.on:
            return x
        y = state.y[: len(x)]
        self._drop(state, x, y)
        return y

    def backward(self, state: DropoutState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """Drops the same elements of dy, in place unless it is a part of something larger."""
        if state.draws.on:
            dy = array_module(dy).ascontiguousarray(dy)
            self._drop(state, dy, dy)
        return dy

    def _drop(self, state: DropoutState, x: Array, y: Array) -> None:
        draws, least, n = state.draws, threshold(self.rate), len(x)
        drop(x.reshape(n, -1), y.reshape(n, -1), draws.samples, draws.key, state.stream, least, 1 / (1 - least / 2**32))
