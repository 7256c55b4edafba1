"""The fully connected layer: y = x W + b, with or without ReLU."""

import math
from dataclasses import dataclass

from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.kernels.layers.activation import add_bias, bias_relu, bias_relu_backward
from psgd.kernels.layers.matmul import matmul, sum_rows
from psgd.nn import pytorch
from psgd.nn.initialize import Init, Uniform, Zeros
from psgd.nn.layer import Arrays, Layer, ParameterSpec, Room, Shape


@dataclass
class LinearState:
    """Buffers of one context, the input that backward needs again, and the gradient that its second half needs."""

    y: Array
    ones: Array
    dx: Array
    x: Array = None
    dy: Array = None


@dataclass(frozen=True)
class Linear(Layer[LinearState]):
    """y = x W + b with W of shape (inputs, units), or max(x W + b, 0), along the last axis of samples.

    W lies inputs first: all three products then run on BLAS without a copy, and forward reads W in the order
    that is fastest for batches smaller than the layer.

    Attributes:
        units: outputs for each sample, or for each token of samples (tokens, features).
        relu: rectify in the same pass that adds the bias; the same as a ReLU layer after it, but faster.
        init: None chooses he when a ReLU follows and xavier otherwise.
    """

    units: int
    relu: bool = False
    init: Init | None = None
    name = "linear"

    own_output = True

    @property
    def reads_output(self) -> bool:
        return self.relu

    def output_shape(self, shape: Shape) -> Shape:
        """Returns `shape` with `units` as its last extent."""
        if not shape:
            raise UsageError("Linear takes samples with at least one axis, got samples of shape ()")
        if self.units < 1:
            raise UsageError(f"Linear needs at least one unit, got {self.units}")
        return (*shape[:-1], self.units)

    def weights(self, shape: Shape) -> tuple[ParameterSpec, ...]:
        initializer = Uniform(shape[-1], self.units, self.init or ("he" if self.relu else None))
        return (
            ParameterSpec("weight", (shape[-1], self.units), initializer, pytorch.linear(shape[-1], self.units)),
            ParameterSpec("bias", (self.units,), Zeros()),
        )

    def allocate(self, room: Room) -> LinearState:
        """Makes output, input gradient, and the ones that sum the bias's gradient on BLAS."""
        rows = room.batch * math.prod(room.shape[:-1])
        return LinearState(room.empty(*self.output_shape(room.shape)), room.xp.ones(rows, room.dtype), room.dx())

    def forward(self, state: LinearState, x: Array, params: Arrays) -> Array:
        weight, bias = params
        y = rows = state.y[: len(x)]
        if x.ndim != 2:  # tokens
            x, rows = _rows(x), _rows(y)
        state.x = x
        matmul(x, weight, rows)
        if self.relu:
            bias_relu(rows, bias)
        else:
            add_bias(rows, bias)
        return y

    def backward(self, state: LinearState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """Writes dW = x^T dy, db = the sum of dy's rows; returns dx = dy W^T."""
        dx = self.backward_input(state, dy, params, grads)
        self.backward_weights(state, grads)
        return dx

    def late(self, shape: Shape) -> tuple[int, ...]:
        return (0,)

    def backward_input(self, state: LinearState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """Writes db, returns dx."""
        (weight, _), (_, dbias) = params, grads
        n = len(dy)
        state.dy = dy = _rows(dy)
        if self.relu:
            bias_relu_backward(_rows(state.y[:n]), dy, dbias)
        else:
            sum_rows(dy, state.ones, dbias)
        if state.dx is None:
            return None
        dx = state.dx[:n]
        matmul(dy, weight.T, _rows(dx))
        return dx

    def backward_weights(self, state: LinearState, grads: Arrays) -> None:
        matmul(state.x.T, state.dy, grads[0])
        state.x = state.dy = None


def _rows(x: Array) -> Array:
    """Samples, or their tokens, as the rows of a matrix: a view."""
    return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
