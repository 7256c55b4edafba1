"""Layers that only show samples in another shape or order."""

import math
from dataclasses import dataclass
from typing import ClassVar

from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.nn.layer import Arrays, Layer, OutputState, Room, Shape


class _View(Layer[Shape]):
    """Shows samples in another shape. Its state is their own, which backward goes back to."""

    def allocate(self, room: Room) -> Shape:
        return room.shape

    def forward(self, state: Shape, x: Array, params: Arrays) -> Array:
        return x.reshape(len(x), *self.output_shape(state))

    def backward(self, state: Shape, dy: Array, params: Arrays, grads: Arrays) -> Array:
        return dy.reshape(len(dy), *state)


@dataclass(frozen=True)
class Flatten(_View):
    """Samples of any shape as flat ones, in C order: a view."""

    name = "flatten"

    def output_shape(self, shape: Shape) -> Shape:
        return (math.prod(shape),)


@dataclass(frozen=True)
class RowTokens(_View):
    """Images (height, width, channels) as (tokens, features): each row of pixels is a token. A view."""

    name = "rowtokens"

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3:
            raise UsageError(f"RowTokens takes images (height, width, channels), got samples of shape {shape}")
        return shape[0], shape[1] * shape[2]


class _Permuted(Layer[OutputState]):
    """Copies samples with their axes in another order, contiguous, and their gradient in the old one."""

    _axes: ClassVar[tuple[int, ...]]
    _back: ClassVar[tuple[int, ...]]

    def allocate(self, room: Room) -> OutputState:
        return OutputState(room.empty(*self.output_shape(room.shape)), room.dx())

    def forward(self, state: OutputState, x: Array, params: Arrays) -> Array:
        y = state.y[: len(x)]
        y[...] = x.transpose(self._axes)
        return y

    def backward(self, state: OutputState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        dx = state.dx[: len(dy)]
        dx[...] = dy.transpose(self._back)
        return dx


@dataclass(frozen=True)
class ChannelsLast(_Permuted):
    """(channels, height, width), as datasets have it, to (height, width, channels), as Conv2D takes it."""

    name = "channelslast"
    _axes, _back = (0, 2, 3, 1), (0, 3, 1, 2)

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3:
            raise UsageError(f"ChannelsLast takes samples (channels, height, width), got {shape}")
        return shape[1], shape[2], shape[0]

    def allocate(self, room: Room) -> OutputState:
        return (
            OutputState(None, None) if room.shape[0] == 1 else super().allocate(room)
        )  # of one channel a view will do

    def forward(self, state: OutputState, x: Array, params: Arrays) -> Array:
        return x.reshape(len(x), *x.shape[2:], 1) if state.y is None else super().forward(state, x, params)

    def backward(self, state: OutputState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        if state.y is None:
            return dy.reshape(len(dy), 1, *dy.shape[1:3])
        return super().backward(state, dy, params, grads)


@dataclass(frozen=True)
class Transpose(_Permuted):
    """(tokens, features) to (features, tokens), contiguous: a layer along the last axis then mixes tokens."""

    name = "transpose"
    reads_output = False  # it is a copy that nothing needs
    _axes = _back = (0, 2, 1)

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 2:
            raise UsageError(f"Transpose takes samples (tokens, features), got samples of shape {shape}")
        return shape[1], shape[0]
