"""Layers that only show samples in another shape or order."""

import math
from dataclasses import dataclass

from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.nn.layer import Arrays, Layer, OutputBuffers, Room, Shape


class _View(Layer[tuple[Shape, Shape]]):
    """The same elements in another shape. The state is the shapes of output and input samples."""

    def allocate(self, room: Room) -> tuple[Shape, Shape]:
        return self.output_shape(room.shape), room.shape

    def forward(self, state: tuple[Shape, Shape], x: Array, params: Arrays) -> Array:
        return x.reshape(len(x), *state[0])

    def backward(self, state: tuple[Shape, Shape], dy: Array, params: Arrays, grads: Arrays) -> Array:
        return dy.reshape(len(dy), *state[1])


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


@dataclass(frozen=True)
class ChannelsLast(Layer[OutputBuffers]):
    """(channels, height, width), as datasets have it, to (height, width, channels), as Conv2D takes it.

    Contiguous: a copy, or a view where there is one channel; its buffers are None then.
    """

    name = "channelslast"

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3:
            raise UsageError(f"ChannelsLast takes samples (channels, height, width), got {shape}")
        return shape[1], shape[2], shape[0]

    def allocate(self, room: Room) -> OutputBuffers:
        if room.shape[0] == 1:
            return OutputBuffers(None, None)
        return OutputBuffers(room.empty(*self.output_shape(room.shape)), room.input_gradient())

    def forward(self, state: OutputBuffers, x: Array, params: Arrays) -> Array:
        if state.y is None:
            return x.reshape(len(x), *x.shape[2:], 1)
        y = state.y[: len(x)]
        y[...] = x.transpose(0, 2, 3, 1)
        return y

    def backward(self, state: OutputBuffers, dy: Array, params: Arrays, grads: Arrays) -> Array:
        if state.y is None:
            return dy.reshape(len(dy), 1, *dy.shape[1:3])
        dx = state.dx[: len(dy)]
        dx[...] = dy.transpose(0, 3, 1, 2)
        return dx


@dataclass(frozen=True)
class Transpose(Layer[OutputBuffers]):
    """(tokens, features) to (features, tokens), contiguous: a layer along the last axis then mixes tokens."""

    name = "transpose"
    reads_output = False  # it is a copy that nothing needs

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 2:
            raise UsageError(f"Transpose takes samples (tokens, features), got samples of shape {shape}")
        return shape[1], shape[0]

    def allocate(self, room: Room) -> OutputBuffers:
        return OutputBuffers(room.empty(*self.output_shape(room.shape)), room.input_gradient())

    def forward(self, state: OutputBuffers, x: Array, params: Arrays) -> Array:
        y = state.y[: len(x)]
        y[...] = x.transpose(0, 2, 1)
        return y

    def backward(self, state: OutputBuffers, dy: Array, params: Arrays, grads: Arrays) -> Array:
        dx = state.dx[: len(dy)]
        dx[...] = dy.transpose(0, 2, 1)
        return dx
