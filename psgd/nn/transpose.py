"""Tokens and features in each other's place, so that a layer along the last axis mixes tokens."""

from dataclasses import dataclass

from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.nn.layer import Arrays, Layer, Room, Shape


@dataclass
class TransposeState:
    """Buffers of one context."""

    y: Array
    dx: Array


@dataclass(frozen=True)
class Transpose(Layer[TransposeState]):
    """(tokens, features) to (features, tokens), contiguous."""

    name = "transpose"

    @property
    def reads_output(self) -> bool:
        """False: it is a copy that nothing needs."""
        return False

    def output_shape(self, shape: Shape) -> Shape:
        """Returns (features, tokens)."""
        if len(shape) != 2:
            raise UsageError(f"Transpose takes samples (tokens, features), got samples of shape {shape}")
        return shape[1], shape[0]

    def allocate(self, room: Room) -> TransposeState:
        """Makes output and input gradient."""
        shape = self.output_shape(room.shape)
        return TransposeState(room.empty(*shape), room.empty(*room.shape) if room.wants_dx else None)

    def forward(self, state: TransposeState, x: Array, params: Arrays) -> Array:
        """Returns x with its last two axes swapped."""
        y = state.y[: len(x)]
        y[...] = x.transpose(0, 2, 1)
        return y

    def backward(self, state: TransposeState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """Returns dy with its last two axes swapped."""
        dx = state.dx[: len(dy)]
        dx[...] = dy.transpose(0, 2, 1)
        return dx
