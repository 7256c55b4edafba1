"""The two-dimensional convolution, as one matrix product over unfolded windows."""

from dataclasses import dataclass

from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.kernels.layers.activation import add_bias
from psgd.kernels.layers.convolution import fold, unfold
from psgd.kernels.layers.matmul import matmul, product_over_rows, sum_rows
from psgd.nn import pytorch
from psgd.nn.initialize import Init, Uniform, Zeros
from psgd.nn.layer import Arrays, Layer, ParameterSpec, Room, Shape


@dataclass
class Conv2DState:
    """Buffers of one context."""

    columns: Array
    y: Array
    ones: Array
    padded: Array
    dpadded: Array
    dx: Array


@dataclass(frozen=True)
class Conv2D(Layer[Conv2DState]):
    """Cross-correlation over (height, width, channels), as other frameworks' Conv2d.

    W has shape (size, size, channels in, channels out).

    Attributes:
        channels: of the output.
        size: side of the square kernel.
        stride: pixels from one window to the next.
        padding: zeros on each side.
        init: None chooses he when a ReLU follows and xavier otherwise.
    """

    channels: int
    size: int
    stride: int = 1
    padding: int = 0
    init: Init | None = None
    name = "conv"
    reads_output = False  # backward needs the windows alone

    def output_shape(self, shape: Shape) -> Shape:
        """Returns (height, width, channels) of the output; windows that do not fit whole are left out."""
        if len(shape) != 3:
            raise UsageError(f"Conv2D takes images (height, width, channels), got samples of shape {shape}")
        if min(self.channels, self.size, self.stride) < 1 or self.padding < 0:
            raise UsageError(f"Conv2D needs channels, size, stride >= 1 and padding >= 0: {self}")
        down, across = ((e + 2 * self.padding - self.size) // self.stride + 1 for e in shape[:2])
        if min(down, across) < 1:
            raise UsageError(f"Conv2D: kernel {self.size} is larger than the image {shape[0]} x {shape[1]}")
        return down, across, self.channels

    def weights(self, shape: Shape) -> tuple[ParameterSpec, ...]:
        area = self.size * self.size
        initializer = Uniform(area * shape[2], area * self.channels, self.init)
        form = pytorch.convolution(self.size, shape[2], self.channels)
        return (
            ParameterSpec("weight", (self.size, self.size, shape[2], self.channels), initializer, form),
            ParameterSpec("bias", (self.channels,), Zeros()),
        )

    def allocate(self, room: Room) -> Conv2DState:
        """Makes the unfolded windows, the output, and what padding and the input's gradient need."""
        height, width, channels = room.shape
        down, across, _ = self.output_shape(room.shape)
        pads = self.padding > 0 and room.on_host  # on a GPU, unfold and fold do it
        wide = (height + 2 * self.padding, width + 2 * self.padding, channels)
        return Conv2DState(
            columns=room.empty(down, across, self.size, self.size, channels),
            y=room.empty(down, across, self.channels),
            ones=room.xp.ones(room.batch * down * across, room.dtype),
            padded=room.zeros(*wide) if pads else None,
            dpadded=room.empty(*wide) if room.wants_dx and pads else None,
            dx=room.dx(),
        )

    def forward(self, state: Conv2DState, x: Array, params: Arrays) -> Array:
        weight, bias = params
        n, p = len(x), self.padding
        if state.padded is not None:
            state.padded[:n, p:-p, p:-p] = x
            x, p = state.padded[:n], 0
        y, columns = state.y[:n], state.columns[:n]
        unfold(x, columns, self.stride, p)
        flat_weight = weight.reshape(-1, self.channels)
        flat_y = y.reshape(-1, self.channels)
        matmul(columns.reshape(-1, len(flat_weight)), flat_weight, flat_y)
        add_bias(flat_y, bias)
        return y

    def backward(self, state: Conv2DState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """Writes dW = windows^T dy, db = the sum over dy's pixels, returns dx = dy W^T folded back."""
        (weight, _), (dweight, dbias) = params, grads
        n, p = len(dy), self.padding
        flat_weight = weight.reshape(-1, self.channels)
        flat_dy = dy.reshape(-1, self.channels)
        columns = state.columns[:n]
        flat_columns = columns.reshape(-1, len(flat_weight))
        product_over_rows(flat_columns, flat_dy, dweight.reshape(-1, self.channels), n)
        sum_rows(flat_dy, state.ones, dbias)
        if state.dx is None:
            return None
        matmul(flat_dy, flat_weight.T, flat_columns)  # the windows are not needed any more
        dx = state.dx[:n]
        if state.dpadded is None:
            fold(columns, dx, self.stride, p)
        else:
            fold(columns, state.dpadded[:n], self.stride)
            dx[...] = state.dpadded[:n, p:-p, p:-p]
        return dx
