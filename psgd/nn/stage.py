"""A list of layers on one flat vector: forward and backward, without a loss."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from psgd.kernels.array import Array, array_module
from psgd.kernels.errors import UsageError
from psgd.nn import sequential
from psgd.nn.layer import Arrays, Layer, Room
from psgd.nn.layout import Layout
from psgd.runtime.rng import generator

OnReady = Callable[[range], None]


@dataclass(eq=False)
class Context:
    """What one forward and backward pass writes besides gradients: buffers for up to `batch` samples.

    `Stage.context` makes it, and several may be alive at once: one for each microbatch.

    Attributes:
        batch: most samples of one pass.
        xp: `numpy` or `cupy`, where the buffers are.
        owner: the stage that made it; no other may use it.
        states: one for each layer.
        wants_dx: whether backward returns the first layer's input gradient.
        output: of the forward pass that waits for its backward pass; None when none does.
        labels: int64 buffer on the device, where the owner is a model.
        dlogits: where the loss writes its gradient; None: over the logits.
    """

    batch: int
    xp: Any
    owner: Any
    states: list[Any]
    wants_dx: bool
    output: Array = None
    labels: Array = None
    dlogits: Array = None


class Stage:
    """Layers in sequence, from samples of one shape to samples of another.

    It owns no parameters and no activations: `bind` gives it views of two vectors, `context` makes buffers.
    Arrays are NumPy's or CuPy's, whichever the bound vectors are. Not for use from several threads at once.

    Attributes:
        layers: as given.
        input_shape: of one sample.
        output_shape: of one sample's output.
        dtype: of parameters and activations, float32 or float64.
        layout: where each parameter lies in the vector.
    """

    def __init__(self, layers: Sequence[Layer[Any]], input_shape: Sequence[int], dtype: Any = np.float32) -> None:
        """Fits the layers together.

        Raises:
            UsageError: shapes that do not fit, or another dtype.
        """
        self.layers = tuple(layers)
        self.input_shape = tuple(input_shape)
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float64):
            raise UsageError(f"model: expected dtype float32 or float64, got {self.dtype}")
        self._steps, self.output_shape = sequential.fit(self.layers, self.input_shape)
        self._first = sequential.first_with_parameters(self._steps)
        specs = [spec for step in self._steps for spec in step.specs]
        forms = {spec.name: spec.torch for spec in specs if spec.torch is not None}
        self.layout = Layout([(spec.name, spec.shape) for spec in specs], torch=forms)
        self._ranges = self._ready_ranges()
        self._xp: Any = None
        self._params: list[Arrays] = []
        self._grads: list[Arrays] = []
        self._parts: list[Arrays] = []
        self._padding: list[list[Array]] = []

    def _ready_ranges(self) -> list[range]:
        """What each layer completes in backward: from its parameters up to the next layer's, padding included."""
        offsets = {p.name: p.offset for p in self.layout.parameters}
        ranges = []
        stop = self.layout.size
        for step in reversed(self._steps):
            start = offsets[step.specs[0].name] if step.specs else stop
            ranges.append(range(start, stop))
            stop = start
        return ranges[::-1]

    def init(self, seed: int) -> npt.NDArray[Any]:
        """Returns first parameters on the host, as each layer's initializers draw them.

        Drawn by (seed, layer): the same on every rank, and up to rounding in both dtypes.
        """
        vector = np.zeros(self.layout.size, self.dtype)
        views = self.layout.views(vector)
        for index, step in enumerate(self._steps):
            rng = generator(seed, "init", index)
            for spec in step.specs:
                views[spec.name][...] = spec.initializer.draw(rng, spec.shape)
        return vector

    def bind(self, params: Array, grads: Array = None) -> None:
        """Uses these vectors from now on: views only, a few microseconds, as often as wanted.

        Args:
            params: (layout.size,) of the stage's dtype; read, never written.
            grads: the same shape, dtype and device; written by `backward`. None where only outputs are wanted.

        Raises:
            UsageError: wrong shape, dtype or device.
        """
        xp = array_module(params)
        for name, vector in (("params", params), ("grads", grads)):
            if vector is not None and (array_module(vector) is not xp or vector.dtype != self.dtype):
                raise UsageError(
                    f"bind: {name}: expected {self.dtype} on {xp.__name__}, got {vector.dtype} on {type(vector)}"
                )
        self._params = self._by_step(params)
        self._grads = [] if grads is None else self._by_step(grads)
        gaps = self.layout.padding
        self._padding = [
            [] if grads is None else [grads[g.start : g.stop] for g in gaps if g.start in ready]
            for ready in self._ranges
        ]
        if xp is not self._xp:
            self._parts = []
        self._xp = xp

    def _by_step(self, vector: Array) -> list[Arrays]:
        views = self.layout.views(vector)
        return [tuple(views[spec.name] for spec in step.specs) for step in self._steps]

    def context(self, batch: int, wants_dx: bool = False, xp: Any = None) -> Context:
        """Makes all buffers for up to `batch` samples, where the bound vectors are (unbound: on the host).

        Args:
            batch: most samples of a pass.
            wants_dx: `backward` is to return the input's gradient too.
            xp: makes the buffers, in place of the vectors' module: `psgd.estimate.counting.CountingArrays`.

        Raises:
            UsageError: `batch` below 1.
        """
        if batch < 1:
            raise UsageError(f"context: expected a batch of 1 or more, got {batch}")
        xp = xp or self._xp or np
        states = sequential.allocate(self._steps, Room(xp, batch, self.dtype, self.input_shape, wants_dx))
        return Context(batch, xp, self, states, wants_dx)

    def forward(self, ctx: Context, x: Array) -> Array:
        """Returns `(n, *output_shape)`, a buffer of `ctx` that its next use overwrites, and waits for `backward`.

        x, the parameters and the output must stay unchanged until then.

        Args:
            ctx: made by this stage.
            x: (n, ...) samples of `input_shape`, or flat, of the stage's dtype; n from 1 to ctx.batch.

        Raises:
            UsageError: another stage's context, nothing bound, x of a wrong shape, dtype or device.
        """
        ctx.output = self._run(ctx, x)
        return ctx.output

    def _run(self, ctx: Context, x: Array) -> Array:
        n = self._check(ctx, x)
        ctx.output = None  # a forward pass that waits for its backward pass has lost its activations
        x = x.reshape(n, *self.input_shape)
        for step, state, params in zip(self._steps, ctx.states, self._params, strict=True):
            x = step.layer.forward(state, x, params)
        return x

    def backward(self, ctx: Context, dy: Array, on_ready: OnReady | None = None, accumulate: bool = False) -> Array:
        """Writes the gradient of sum(dy * y) to the bound grads; their padding becomes 0.

        Args:
            ctx: after one `forward`, which this uses up.
            dy: shape of the output, with the same dtype and device; may be overwritten.
            on_ready: called with each range of the vector as it is complete, last layer first; together the
                ranges are the whole vector. It may read and write the range, not rebind.
            accumulate: add to grads what would overwrite them: gradients of microbatches, one after the other,
                become their sum.

        Returns:
            The input's gradient, a buffer of `ctx`, if that was made to want it; else None.

        Raises:
            UsageError: no forward before, no grads bound, or dy of a wrong shape or dtype.
        """
        if ctx.output is None or not self._grads:
            raise UsageError("backward: needs a forward pass on this context before it, and bound grads")
        y, ctx.output = ctx.output, None
        if dy.shape != y.shape or dy.dtype != self.dtype or not isinstance(dy, ctx.xp.ndarray):
            raise UsageError(
                f"backward: dy: expected {y.dtype} {y.shape} on {ctx.xp.__name__}, got {dy.dtype} {dy.shape}"
            )
        return self._back(ctx, dy, on_ready, accumulate)

    def _back(self, ctx: Context, dy: Array, on_ready: OnReady | None, accumulate: bool) -> Array:
        targets = self._scratch() if accumulate else self._grads
        last = -1 if ctx.wants_dx else self._first - 1
        for index in range(len(self._steps) - 1, last, -1):
            dy = self._steps[index].layer.backward(ctx.states[index], dy, self._params[index], targets[index])
            if accumulate:
                for total, part in zip(self._grads[index], targets[index], strict=True):
                    ctx.xp.add(total, part, out=total)
            for gap in self._padding[index]:
                gap.fill(0)
            if on_ready is not None and self._ranges[index]:
                on_ready(self._ranges[index])
        return dy if ctx.wants_dx else None

    def _scratch(self) -> list[Arrays]:
        """Gradients to be added, one layer's at a time: a buffer as large as the largest layer's, made once."""
        if not self._parts:
            sizes = [[math.prod(spec.shape) for spec in step.specs] for step in self._steps]
            vector = self._xp.empty(max(map(sum, sizes), default=0), self.dtype)
            for step, counts in zip(self._steps, sizes, strict=True):
                pieces = self._xp.split(vector[: sum(counts)], np.cumsum(counts)[:-1].tolist()) if counts else []
                self._parts.append(
                    tuple(piece.reshape(spec.shape) for piece, spec in zip(pieces, step.specs, strict=True))
                )
        return self._parts

    def _check(self, ctx: Context, x: Array) -> int:
        """Returns the number of samples, or says what is wrong."""
        if ctx.owner is not self or ctx.xp is not self._xp:
            raise UsageError("model: the context belongs to another model or device, or nothing is bound yet")
        n = len(x)
        if not 1 <= n <= ctx.batch:
            raise UsageError(f"model: expected 1 to {ctx.batch} samples (the context's size), got {n}")
        if x.dtype != self.dtype or not isinstance(x, ctx.xp.ndarray):
            raise UsageError(f"model: x: expected {self.dtype} on {ctx.xp.__name__}, got {x.dtype} on {type(x)}")
        if x.shape[1:] != self.input_shape and x.shape[1:] != (math.prod(self.input_shape),):
            raise UsageError(f"model: expected samples of shape {self.input_shape}, or flat ones, got {x.shape[1:]}")
        return n
