"""Layers that only show samples in another shape or order."""

import math
from dataclasses import dataclass

from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.nn.layer import Arrays, Layer, Room, Shape


@dataclass
class FlattenState:
    """The shape that backward goes back to."""

    shape: Shape


@dataclass(frozen=True)
class Flatten(Layer[FlattenState]):
    """Samples of any shape as flat ones, in C order: a view."""

    name = "flatten"

    def output_shape(self, shape: Shape) -> Shape:
        """Returns (elements,)."""
        return (math.prod(shape),)

    def allocate(self, room: Room) -> FlattenState:
        """Needs no buffer."""
        return FlattenState(room.shape)

    def forward(self, state: FlattenState, x: Array, params: Arrays) -> Array:
        """Returns x as (n, elements)."""
        return x.reshape(len(x), -1)

    def backward(self, state: FlattenState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """Returns dy in the input's shape."""
        return dy.reshape(len(dy), *state.shape)


@dataclass
class ChannelsLastState:
    """Buffers of one context; None for one channel, where a view will do."""

    y: Array
    dx: Array


@dataclass(frozen=True)
class ChannelsLast(Layer[ChannelsLastState]):
    """(channels, height, width), as datasets have it, to (height, width, channels), as Conv2D takes it."""

    name = "channelslast"

    def output_shape(self, shape: Shape) -> Shape:
        """Returns (height, width, channels)."""
        if len(shape) != 3:
            raise UsageError(f"ChannelsLast takes samples (channels, height, width), got {shape}")
        return shape[1], shape[2], shape[0]

    def allocate(self, room: Room) -> ChannelsLastState:
        """Makes contiguous copies' buffers for more than one channel."""
        if room.shape[0] == 1:
            return ChannelsLastState(None, None)
        shape = self.output_shape(room.shape)
        return ChannelsLastState(room.empty(*shape), room.empty(*room.shape) if room.wants_dx else None)

    def forward(self, state: ChannelsLastState, x: Array, params: Arrays) -> Array:
        """Returns x with its channels last, contiguous."""
        if state.y is None:
            return x.reshape(len(x), *x.shape[2:], 1)
        y = state.y[: len(x)]
        y[...] = x.transpose(0, 2, 3, 1)
        return y

    def backward(self, state: ChannelsLastState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """Returns dy with its channels first, contiguous."""
        if state.y is None:
            return dy.reshape(len(dy), 1, *dy.shape[1:3])
        dx = state.dx[: len(dy)]
        dx[...] = dy.transpose(0, 3, 1, 2)
        return dx


@dataclass(frozen=True)
class RowTokens(Layer[FlattenState]):
    """Images (height, width, channels) as (tokens, features): each row of pixels is a token. A view."""

    name = "rowtokens"

    def output_shape(self, shape: Shape) -> Shape:
        """Returns (height, width * channels)."""
        if len(shape) != 3:
            raise UsageError(f"RowTokens takes images (height, width, channels), got samples of shape {shape}")
        return shape[0], shape[1] * shape[2]

    def allocate(self, room: Room) -> FlattenState:
        """Needs no buffer."""
        return FlattenState(room.shape)

    def forward(self, state: FlattenState, x: Array, params: Arrays) -> Array:
        """Returns x as (n, height, width * channels)."""
        return x.reshape(len(x), state.shape[0], -1)

    def backward(self, state: FlattenState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """Returns dy in the input's shape."""
        return dy.reshape(len(dy), *state.shape)


@dataclass
class TransposeState:
    """Buffers of one context."""

    y: Array
    dx: Array


@dataclass(frozen=True)
class Transpose(Layer[TransposeState]):
    """(tokens, features) to (features, tokens), contiguous: a layer along the last axis then mixes tokens."""

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
