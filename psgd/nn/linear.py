"""The fully connected layer: y = x W + b, with or without ReLU."""

from dataclasses import dataclass

from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.kernels.layers.activation import add_bias, bias_relu, bias_relu_backward
from psgd.kernels.layers.matmul import matmul, sum_rows
from psgd.nn.initialize import Init
from psgd.nn.layer import Layer, Room, Shape, Weights


@dataclass
class LinearState:
    """Buffers of one context, and the input that backward needs again."""

    y: Array
    ones: Array
    dx: Array
    x: Array = None


@dataclass(frozen=True)
class Linear(Layer[LinearState]):
    """y = x W + b with W of shape (inputs, units), or max(x W + b, 0).

    W lies inputs first: all three products then run on BLAS without a copy, and forward reads W in the order
    that is fastest for batches smaller than the layer.

    Attributes:
        units: outputs for each sample.
        relu: rectify in the same pass that adds the bias; the same as a ReLU layer behind, in less time.
        init: None chooses he when a ReLU follows and xavier otherwise.
    """

    units: int
    relu: bool = False
    init: Init | None = None
    name = "linear"

    def output_shape(self, shape: Shape) -> Shape:
        """Returns (units,)."""
        if len(shape) != 1:
            raise UsageError(f"Linear takes flat samples, got shape {shape}; put Flatten before it")
        if self.units < 1:
            raise UsageError(f"Linear needs at least one unit, got {self.units}")
        return (self.units,)

    def weights(self, shape: Shape) -> Weights:
        """Returns W (inputs, units)."""
        return Weights((shape[0], self.units), shape[0], self.units, self.init)

    def allocate(self, room: Room) -> LinearState:
        """Makes output, input gradient, and the ones that sum the bias's gradient on BLAS."""
        dx = room.empty(*room.shape) if room.wants_dx else None
        return LinearState(room.empty(self.units), room.xp.ones(room.batch, room.dtype), dx)

    def forward(self, state: LinearState, x: Array, weight: Array, bias: Array) -> Array:
        """Returns x W + b, rectified or not."""
        y = state.y[: len(x)]
        state.x = x
        matmul(x, weight, y)
        if self.relu:
            bias_relu(y, bias)
        else:
            add_bias(y, bias)
        return y

    def backward(self, state: LinearState, dy: Array, weight: Array, dweight: Array, dbias: Array) -> Array:
        """Writes dW = x^T dy, db = the sum of dy's rows; returns dx = dy W^T."""
        n = len(dy)
        if self.relu:
            bias_relu_backward(state.y[:n], dy, dbias)
        else:
            sum_rows(dy, state.ones, dbias)
        matmul(state.x.T, dy, dweight)
        state.x = None
        return None if state.dx is None else matmul(dy, weight.T, state.dx[:n])
