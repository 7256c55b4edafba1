"""Tokens to vectors and back: a table's rows by number, one vector for each place, and scores by the same table."""

from dataclasses import dataclass

from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.kernels.layers.activation import add_bias
from psgd.kernels.layers.matmul import matmul, sum_rows
from psgd.kernels.layers.table_rows import embed, embed_backward
from psgd.nn.initialize import Spread
from psgd.nn.layer import Arrays, Layer, ParameterSpec, Room, Shape

DEVIATION = 0.02
"""Of the first values of both tables, as GPT-2's."""


@dataclass
class EmbeddingState:
    """Buffers of one context, and the tokens that backward needs again."""

    y: Array
    dx: Array
    tokens: Array = None


@dataclass(frozen=True)
class Embedding(Layer[EmbeddingState]):
    """Tokens of any shape, whole numbers from 0 in the dtype of activations, to rows of a table along a new last axis.

    The gradient for the tokens is 0 everywhere.

    Attributes:
        vocabulary: rows of the table.
        width: values of a row.
    """

    vocabulary: int
    width: int
    name = "embedding"
    reads_output = False

    def output_shape(self, shape: Shape) -> Shape:
        if self.vocabulary < 1 or self.width < 1:
            raise UsageError(f"Embedding needs a table of at least 1 x 1, got {self.vocabulary} x {self.width}")
        return (*shape, self.width)

    def weights(self, shape: Shape) -> tuple[ParameterSpec, ...]:
        return (ParameterSpec("weight", (self.vocabulary, self.width), Spread(DEVIATION)),)

    def allocate(self, room: Room) -> EmbeddingState:
        return EmbeddingState(room.empty(*room.shape, self.width), room.zeros(*room.shape) if room.wants_dx else None)

    def forward(self, state: EmbeddingState, x: Array, params: Arrays) -> Array:
        y = state.y[: len(x)]
        state.tokens = x.reshape(-1)
        embed(state.tokens, params[0], y.reshape(-1, self.width))
        return y

    def backward(self, state: EmbeddingState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """Writes the sum of dy's rows by token."""
        embed_backward(state.tokens, dy.reshape(-1, self.width), grads[0])
        state.tokens = None
        return None if state.dx is None else state.dx[: len(dy)]


@dataclass
class PositionsState:
    """Buffers of one context."""

    y: Array
    ones: Array


@dataclass(frozen=True)
class Positions(Layer[PositionsState]):
    """Adds to each token, of samples (tokens, features), a vector of its place, which is learned."""

    name = "positions"
    reads_output = False

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 2:
            raise UsageError(f"Positions takes samples (tokens, features), got samples of shape {shape}")
        return shape

    def weights(self, shape: Shape) -> tuple[ParameterSpec, ...]:
        return (ParameterSpec("weight", shape, Spread(DEVIATION)),)

    def allocate(self, room: Room) -> PositionsState:
        return PositionsState(room.empty(*room.shape), room.xp.ones(room.batch, room.dtype))

    def forward(self, state: PositionsState, x: Array, params: Arrays) -> Array:
        y = state.y[: len(x)]
        y[...] = x
        add_bias(y.reshape(len(x), -1), params[0].reshape(-1))
        return y

    def backward(self, state: PositionsState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """Writes the sum of dy over the samples, and returns dy."""
        sum_rows(dy.reshape(len(dy), -1), state.ones, grads[0].reshape(-1))
        return dy


@dataclass
class UnembeddingState:
    """Buffers of one context, the rows that backward needs again, and the gradient that its second half needs."""

    y: Array
    dx: Array
    rows: Array = None
    dy: Array = None


@dataclass(frozen=True)
class Unembedding(Layer[UnembeddingState]):
    """One score for each token of the vocabulary: the product of the input, along its last axis, with a table's rows.

    Attributes:
        vocabulary: rows of the table.
        tied: the name of the table in the whole model, as an `Embedding` has it; None is a table of its own.
    """

    vocabulary: int
    tied: str | None = "embedding1.weight"
    name = "unembedding"
    reads_output = False

    def output_shape(self, shape: Shape) -> Shape:
        if not shape or self.vocabulary < 1:
            raise UsageError(
                f"Unembedding needs samples with at least one axis and a vocabulary of at least 1, got samples of "
                f"shape {shape} and {self.vocabulary}"
            )
        return (*shape[:-1], self.vocabulary)

    def weights(self, shape: Shape) -> tuple[ParameterSpec, ...]:
        return (ParameterSpec("weight", (self.vocabulary, shape[-1]), Spread(DEVIATION), tied=self.tied),)

    def allocate(self, room: Room) -> UnembeddingState:
        return UnembeddingState(room.empty(*self.output_shape(room.shape)), room.dx())

    def forward(self, state: UnembeddingState, x: Array, params: Arrays) -> Array:
        y = state.y[: len(x)]
        state.rows = x.reshape(-1, x.shape[-1])
        matmul(state.rows, params[0].T, y.reshape(-1, self.vocabulary))
        return y

    def backward(self, state: UnembeddingState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """Writes dy^T x; returns dy times the table."""
        dx = self.backward_input(state, dy, params, grads)
        self.backward_weights(state, grads)
        return dx

    def late(self, shape: Shape) -> tuple[int, ...]:
        return (0,)

    def backward_input(self, state: UnembeddingState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        n = len(dy)
        state.dy = dy = dy.reshape(-1, self.vocabulary)
        if state.dx is None:
            return None
        dx = state.dx[:n]
        matmul(dy, params[0], dx.reshape(-1, dx.shape[-1]))
        return dx

    def backward_weights(self, state: UnembeddingState, grads: Arrays) -> None:
        matmul(state.dy.T, state.rows, grads[0])
        state.rows = state.dy = None
