"""Causal attention with several heads: the heads alone, without parameters, and between two linear layers."""

from dataclasses import dataclass, replace
from typing import Any

from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.kernels.layers.heads import attend, attend_backward, scratch_samples
from psgd.nn.layer import Arrays, Layer, ParameterSpec, Room, Shape
from psgd.nn.linear import Linear
from psgd.nn.pytorch import TorchForm


@dataclass
class HeadsState:
    """Buffers of one context, and the input that backward needs again.

    Attributes:
        y: output.
        shares: what each token takes from each, (n, heads, tokens, tokens).
        scratch: the gradient of some of these.
        dx: of the input; None where it is not wanted.
        x: input.
    """

    y: Array
    shares: Array
    scratch: Array
    dx: Array
    x: Array = None


@dataclass(frozen=True)
class Heads(Layer[HeadsState]):
    """softmax(q k^T / sqrt(features)) v by head, over the tokens up to each one (Vaswani et al. 2017, masked).

    Samples are (tokens, heads x 3 x features): of each head its query, key and value. So a part of the heads is a part
    of the columns of whatever made the input. The output is (tokens, heads x features).

    Attributes:
        heads: number of heads, each of which is by itself.
    """

    heads: int
    name = "heads"
    reads_output = False

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 2 or self.heads < 1 or shape[1] % (3 * self.heads):
            raise UsageError(
                f"Heads takes samples (tokens, features) with three times as many features for each of its heads, got "
                f"samples of shape {shape} and {self.heads} heads"
            )
        return shape[0], shape[1] // 3

    def allocate(self, room: Room) -> HeadsState:
        tokens = room.shape[0]
        square = self.heads, tokens, tokens
        at_once = room.batch if room.xp.__name__ != "numpy" else min(room.batch, scratch_samples(self.heads, tokens))
        scratch = room.xp.empty((at_once, *square), room.dtype) if room.trains else None
        return HeadsState(room.empty(*self.output_shape(room.shape)), room.empty(*square), scratch, room.dx())

    def forward(self, state: HeadsState, x: Array, params: Arrays) -> Array:
        n = len(x)
        state.x = x
        y = state.y[:n]
        attend(self._apart(x), state.shares[:n], y.reshape(*y.shape[:2], self.heads, -1))
        return y

    def backward(self, state: HeadsState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """Returns the gradient for queries, keys and values."""
        n = len(dy)
        x, state.x = state.x, None
        if state.dx is None:
            return None
        dx = state.dx[:n]
        slope = dy.reshape(*dy.shape[:2], self.heads, -1)
        attend_backward(self._apart(x), state.shares[:n], slope, self._apart(dx), state.scratch)
        return dx

    def _apart(self, x: Array) -> Array:
        return x.reshape(*x.shape[:2], self.heads, 3, -1)


@dataclass
class AttentionState:
    """The states of the three parts."""

    made: Any
    heads: Any
    joined: Any


@dataclass(frozen=True)
class Attention(Layer[AttentionState]):
    """Causal attention of samples (tokens, features): a linear layer to queries, keys and values, `Heads`, another.

    Attributes:
        heads: a divisor of the features.
    """

    heads: int
    name = "attention"
    reads_output = False

    def parts(self, shape: Shape) -> tuple[Linear, Heads, Linear]:
        """The three layers that it is, one after the other, for inputs of `shape`.

        Raises:
            UsageError: other samples than tokens, or features that the heads do not divide.
        """
        if len(shape) != 2 or self.heads < 1 or shape[1] % self.heads:
            raise UsageError(
                f"Attention takes samples (tokens, features) with a multiple of its heads as features, got samples of "
                f"shape {shape} and {self.heads} heads"
            )
        return Linear(3 * shape[1], init="xavier"), Heads(self.heads), Linear(shape[1])

    def output_shape(self, shape: Shape) -> Shape:
        self.parts(shape)
        return shape

    def weights(self, shape: Shape) -> tuple[ParameterSpec, ...]:
        """Those of both linear layers; PyTorch has all queries' columns first, then all keys', then all values'."""
        width, each = shape[1], shape[1] // self.heads
        make, _, join = self.parts(shape)
        weight, bias = make.weights(shape)
        split = width, self.heads, 3, each
        forms = TorchForm(split, (2, 1, 3, 0), (3 * width, width)), TorchForm(split[1:], (1, 0, 2), (3 * width,))
        return (
            ParameterSpec("qkv.weight", weight.shape, weight.initializer, forms[0]),
            ParameterSpec("qkv.bias", bias.shape, bias.initializer, forms[1]),
            *(
                ParameterSpec(f"out.{spec.name}", spec.shape, spec.initializer, spec.torch)
                for spec in join.weights(shape)
            ),
        )

    def allocate(self, room: Room) -> AttentionState:
        make, heads, join = self.parts(room.shape)
        middle = replace(room, wants_dx=room.trains)
        tripled = (room.shape[0], 3 * room.shape[1])
        return AttentionState(
            make.allocate(room),
            heads.allocate(replace(middle, shape=tripled)),
            join.allocate(middle),
        )

    def forward(self, state: AttentionState, x: Array, params: Arrays) -> Array:
        make, heads, join = self.parts(x.shape[1:])
        made = make.forward(state.made, x, params[:2])
        return join.forward(state.joined, heads.forward(state.heads, made, ()), params[2:])

    def backward(self, state: AttentionState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        dx = self.backward_input(state, dy, params, grads)
        self.backward_weights(state, grads)
        return dx

    def late(self, shape: Shape) -> tuple[int, ...]:
        return (0, 2)

    def backward_input(self, state: AttentionState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        make, heads, join = self.parts(dy.shape[1:])
        dy = join.backward_input(state.joined, dy, params[2:], grads[2:])
        return make.backward_input(state.made, heads.backward(state.heads, dy, (), ()), params[:2], grads[:2])

    def backward_weights(self, state: AttentionState, grads: Arrays) -> None:
        for state_of, mine in ((state.joined, grads[2:]), (state.made, grads[:2])):
            Linear(1).backward_weights(state_of, mine)  # a product of what the states keep, whatever the units
