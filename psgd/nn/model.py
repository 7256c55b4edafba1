"""A list of layers on one flat vector: forward, loss, backward, evaluation."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from psgd import keyed
from psgd.kernels.array import Array, array_module
from psgd.kernels.errors import UsageError
from psgd.kernels.layers.loss import softmax_cross_entropy
from psgd.nn.context import Context
from psgd.nn.initialize import Init, bound, uniform
from psgd.nn.layer import Layer, Room, Shape, Weights
from psgd.nn.layout import Layout
from psgd.nn.linear import Linear
from psgd.nn.relu import ReLU

OnReady = Callable[[range], None]
LossOf = Callable[[Array, Array, float], tuple[float, int]]
_NOTHING = (None, None)


@dataclass(frozen=True)
class _Step:
    """One layer in its place."""

    layer: Layer[Any]
    shape: Shape  # of one input sample
    weights: Weights | None
    name: str


class Model:
    """Layers that end in one logit for each class, trained with softmax cross-entropy.

    It owns no parameters and no activations: `bind` gives it views of two vectors, `context` makes buffers.
    Arrays are NumPy's or CuPy's, whichever the bound vectors are. Not for use from several threads at once.

    Attributes:
        layers: as given.
        input_shape: of one sample.
        classes: number of logits.
        dtype: of parameters and activations, float32 or float64.
        layout: where each parameter lies in the vector.
    """

    def __init__(self, layers: Sequence[Layer[Any]], input_shape: Sequence[int], dtype: Any = np.float32) -> None:
        """Fits the layers together.

        Raises:
            UsageError: shapes that do not fit, no layer with parameters, or another dtype.
        """
        self.layers = tuple(layers)
        self.input_shape = tuple(input_shape)
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float64):
            raise UsageError(f"model: dtype is float32 or float64, got {self.dtype}")
        shape = self.input_shape
        steps: list[_Step] = []
        counts: dict[str, int] = {}
        for layer in self.layers:
            output = layer.output_shape(shape)
            counts[layer.name] = counts.get(layer.name, 0) + 1
            steps.append(_Step(layer, shape, layer.weights(shape), f"{layer.name}{counts[layer.name]}"))
            shape = output
        if len(shape) != 1 or not any(step.weights for step in steps):
            raise UsageError("model: needs a layer with parameters, and one flat output for each sample")
        self.classes = shape[0]
        self._steps = steps
        self._first = next(i for i, step in enumerate(steps) if step.weights)
        parameters: list[tuple[str, Shape]] = []
        for step in steps:
            if step.weights is not None:
                parameters.append((f"{step.name}.weight", step.weights.shape))
                parameters.append((f"{step.name}.bias", step.weights.shape[-1:]))
        self.layout = Layout(parameters)
        self._ranges = self._ready_ranges()
        self._xp: Any = None
        self._weights: list[tuple[Array, Array]] = []
        self._grads: list[tuple[Array, Array]] = []
        self._padding: list[list[Array]] = []

    def _ready_ranges(self) -> list[range]:
        """What each layer completes in backward: from its weight up to the next layer's, padding included."""
        offsets = {p.name: p.offset for p in self.layout.parameters}
        starts = [offsets.get(f"{step.name}.weight") for step in self._steps]
        ranges = []
        stop = self.layout.size
        for start in reversed(starts):
            ranges.append(range(0) if start is None else range(start, stop))
            stop = stop if start is None else start
        return ranges[::-1]

    def init(self, seed: int) -> npt.NDArray[Any]:
        """Returns first parameters on the host: uniform weights (`initialize.bound`), zeros elsewhere.

        Drawn by (seed, layer): the same on every rank, and up to rounding in both dtypes.
        """
        vector = np.zeros(self.layout.size, self.dtype)
        views = self.layout.views(vector)
        for index, step in enumerate(self._steps):
            if step.weights is not None:
                fans = step.weights.fan_in, step.weights.fan_out
                a = bound(step.weights.init or self._init_by_place(index), *fans)
                views[f"{step.name}.weight"][...] = uniform(keyed.generator(seed, "init", index), a, step.weights.shape)
        return vector

    def _init_by_place(self, index: int) -> Init:
        """He where a ReLU comes before the next layer with parameters, Xavier elsewhere."""
        layer = self.layers[index]
        if isinstance(layer, Linear) and layer.relu:
            return "he"
        for step in self._steps[index + 1 :]:
            if isinstance(step.layer, ReLU):
                return "he"
            if step.weights is not None:
                break
        return "xavier"

    def bind(self, params: Array, grads: Array = None) -> None:
        """Uses these vectors from now on: views only, a few microseconds, as often as wanted.

        Args:
            params: (layout.size,) of the model's dtype; read, never written.
            grads: the same shape, dtype and device; overwritten by `gradient` and `backward`. None where only
                logits are wanted.

        Raises:
            UsageError: wrong shape, dtype or device.
        """
        xp = array_module(params)
        for name, vector in (("params", params), ("grads", grads)):
            if vector is not None and (array_module(vector) is not xp or vector.dtype != self.dtype):
                raise UsageError(f"bind: {name} is {self.dtype} on {xp.__name__}, got {vector.dtype} on {type(vector)}")
        self._weights = self._by_step(params)
        self._grads = [] if grads is None else self._by_step(grads)
        gaps = self.layout.padding
        self._padding = [
            [] if grads is None else [grads[g.start : g.stop] for g in gaps if g.start in ready]
            for ready in self._ranges
        ]
        self._xp = xp

    def _by_step(self, vector: Array) -> list[tuple[Array, Array]]:
        views = self.layout.views(vector)
        return [
            (views[f"{step.name}.weight"], views[f"{step.name}.bias"]) if step.weights else _NOTHING
            for step in self._steps
        ]

    def context(self, batch: int) -> Context:
        """Makes all buffers for up to `batch` samples, where the bound vectors are (unbound: on the host).

        Raises:
            UsageError: `batch` below 1.
        """
        if batch < 1:
            raise UsageError(f"context: batch is at least 1, got {batch}")
        xp = self._xp or np
        room = Room(xp, batch, self.dtype, (), False)
        states = [
            step.layer.allocate(replace(room, shape=step.shape, wants_dx=index > self._first))
            for index, step in enumerate(self._steps)
        ]
        return Context(batch, xp, self, states, xp.empty(batch, np.int64))

    def logits(self, ctx: Context, x: Array) -> Array:
        """Returns (n, classes), a buffer of `ctx` that its next use overwrites.

        Args:
            ctx: made by this model.
            x: (n, ...) samples of `input_shape`, or flat, of the model's dtype; n from 1 to ctx.batch.

        Raises:
            UsageError: another model's context, nothing bound, x of a wrong shape, dtype or device.
        """
        n = self._check(ctx, x)
        ctx.logits = None  # a forward pass that waits for its backward pass has lost its activations
        x = x.reshape(n, *self.input_shape)
        for step, state, weights in zip(self._steps, ctx.states, self._weights, strict=True):
            x = step.layer.forward(state, x, *weights)
        return x

    def forward(self, ctx: Context, x: Array) -> Array:
        """`logits`, to be followed by `backward` on the same context.

        x and the parameters must stay unchanged until then, and the logits are not to be written.
        """
        ctx.logits = self.logits(ctx, x)
        return ctx.logits

    def backward(
        self, ctx: Context, y: Array, on_ready: OnReady | None = None, loss_of: LossOf = softmax_cross_entropy
    ) -> float:
        """Returns the mean loss, and overwrites the bound grads with its gradient; the padding becomes 0.

        Args:
            ctx: after one `forward`, which this uses up.
            y: (n,) integer labels on the device.
            on_ready: called with each range of the vector as it is complete, last layer first; together the
                ranges are the whole vector. It may read and write the range, not rebind.
            loss_of: called for loss and gradient, as `softmax_cross_entropy`.

        Raises:
            UsageError: no forward before, no grads bound, or y of a wrong shape or dtype.
            DataError: a label out of range; nothing was written to grads.
        """
        if ctx.logits is None or not self._grads:
            raise UsageError("backward: needs a forward pass on this context before it, and bound grads")
        dy, ctx.logits = ctx.logits, None
        n = len(dy)
        loss, _ = loss_of(dy, self._labels(ctx, y, n), 1 / n)
        for index in range(len(self._steps) - 1, self._first - 1, -1):
            weight, _ = self._weights[index]
            dy = self._steps[index].layer.backward(ctx.states[index], dy, weight, *self._grads[index])
            for gap in self._padding[index]:
                gap.fill(0)
            if on_ready is not None and self._ranges[index]:
                on_ready(self._ranges[index])
        return loss / n

    def gradient(
        self,
        ctx: Context,
        x: Array,
        y: Array,
        on_ready: OnReady | None = None,
        loss_of: LossOf = softmax_cross_entropy,
    ) -> float:
        """`forward` and `backward`: returns the mean loss over x and overwrites the bound grads."""
        self.forward(ctx, x)
        return self.backward(ctx, y, on_ready, loss_of)

    def evaluate(self, ctx: Context, x: Array, y: Array) -> tuple[int, float]:
        """Returns how many of any number of samples are classified right, and their summed loss."""
        correct, loss = 0, 0.0
        for start in range(0, len(x), ctx.batch):
            part = slice(start, min(start + ctx.batch, len(x)))
            z = self.logits(ctx, x[part])
            part_loss, part_correct = softmax_cross_entropy(z, self._labels(ctx, y[part], len(z)), 1.0)
            correct, loss = correct + part_correct, loss + part_loss
        return correct, loss

    def _check(self, ctx: Context, x: Array) -> int:
        """Returns the number of samples, or says what is wrong."""
        if ctx.owner is not self or ctx.xp is not self._xp:
            raise UsageError("model: the context is another model's or device's, or nothing is bound yet")
        n = len(x)
        if not 1 <= n <= ctx.batch:
            raise UsageError(f"model: a batch has 1 to {ctx.batch} samples (the context's size), got {n}")
        if x.dtype != self.dtype or not isinstance(x, ctx.xp.ndarray):
            raise UsageError(f"model: x is {self.dtype} on {ctx.xp.__name__}, got {x.dtype} on {type(x)}")
        if x.shape[1:] != self.input_shape and x.shape[1:] != (math.prod(self.input_shape),):
            raise UsageError(f"model: samples have shape {self.input_shape} or flat, got {x.shape[1:]}")
        return n

    def _labels(self, ctx: Context, y: Array, n: int) -> Array:
        """Copies y to the context's int64 labels, so that one compiled loss serves all integer types."""
        if y.shape != (n,) or y.dtype.kind not in "iu" or not isinstance(y, ctx.xp.ndarray):
            raise UsageError(f"model: y is {n} integers on {ctx.xp.__name__}, got {y.dtype} {y.shape}")
        if y.base is ctx.labels:  # written there by whoever gathers batches
            return y
        labels = ctx.labels[:n]
        labels[...] = y
        return labels
