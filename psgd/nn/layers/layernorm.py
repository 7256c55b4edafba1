"""Layer normalization (Ba et al. 2016): each token's features to mean 0 and variance 1, then a factor and a summand."""

import math
from dataclasses import dataclass

from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.kernels.layers.row_norm import layer_norm, layer_norm_backward
from psgd.nn.initialize import Ones, Zeros
from psgd.nn.layer import Arrays, Layer, ParameterSpec, Room, Shape


@dataclass
class LayerNormState:
    """Buffers of one context, and the input that backward needs again."""

    y: Array
    mean: Array
    scale: Array
    x: Array = None


@dataclass(frozen=True)
class LayerNorm(Layer[LayerNormState]):
    """Normalizes along the last axis of samples.

    Attributes:
        epsilon: added to the variance.
    """

    epsilon: float = 1e-5
    name = "layernorm"
    reads_output = False

    def output_shape(self, shape: Shape) -> Shape:
        if not shape or not self.epsilon > 0:
            raise UsageError(
                f"LayerNorm takes samples with at least one axis and an epsilon above 0, got samples of shape {shape} "
                f"and {self.epsilon}"
            )
        return shape

    def weights(self, shape: Shape) -> tuple[ParameterSpec, ...]:
        return ParameterSpec("weight", shape[-1:], Ones()), ParameterSpec("bias", shape[-1:], Zeros())

    def allocate(self, room: Room) -> LayerNormState:
        rows = room.batch * math.prod(room.shape[:-1])
        return LayerNormState(room.empty(*room.shape), *(room.xp.empty(rows, room.dtype) for _ in range(2)))

    def forward(self, state: LayerNormState, x: Array, params: Arrays) -> Array:
        y = state.y[: len(x)]
        state.x = rows = x.reshape(-1, x.shape[-1])
        mean, scale = state.mean[: len(rows)], state.scale[: len(rows)]
        layer_norm(rows, params[0], params[1], y.reshape(rows.shape), mean, scale, self.epsilon)
        return y

    def backward(self, state: LayerNormState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """Returns dy, turned into the input's gradient in place."""
        rows, state.x = state.x, None
        n = len(rows)
        mean, scale = state.mean[:n], state.scale[:n]
        layer_norm_backward(rows, dy.reshape(rows.shape), params[0], mean, scale, grads[0], grads[1])
        return dy
