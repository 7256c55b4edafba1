"""A list of layers on one flat vector: forward and backward, without a loss."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from psgd.kernels.array import Array, array_module
from psgd.kernels.errors import UsageError
from psgd.kernels.layers.draws import Draws
from psgd.nn import sequential
from psgd.nn.layer import Arrays, Layer, Room, Shape
from psgd.nn.layout import Layout
from psgd.nn.recompute import recomputed
from psgd.runtime.rng import generator

S = TypeVar("S", bound="Stage")
OnReady = Callable[[range], None]
Views = Mapping[str, Array]


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
        draws: by what its layers draw random numbers.
        trains: backward passes may follow.
        output: of the forward pass that waits for its backward pass; None when none does.
        half: `backward_input` was called, and `backward_weights` was not.
        labels: int64 buffer on the device, where the owner is a model.
        dlogits: where the loss writes its gradient; None: over the logits.
    """

    batch: int
    xp: Any
    owner: Any
    states: list[Any]
    wants_dx: bool
    draws: Draws
    trains: bool = True
    output: Array = None
    half: bool = False
    labels: Array = None
    dlogits: Array = None

    def draw(self, key: int, samples: Array) -> None:
        """From now on passes draw by these: dropout drops. Without effect where no layer draws.

        The same key and number of a sample draw the same, on whatever rank and in whatever part of the batch.

        Args:
            key: 64 bits that stand for the step, as `psgd.runtime.rng.bits(seed, epoch, step)`.
            samples: (n,) integers on the host, from 0: numbers of the pass's samples in the dataset or whole batch.

        Raises:
            UsageError: other samples than that, or more than `batch`.
        """
        self.draws.begin(key, samples)


class Stage:
    """Layers in sequence, from samples of one shape to samples of another.

    It owns no parameters and no activations: `bind` gives it views of two vectors, `context` makes buffers.
    Arrays are NumPy's or CuPy's, as the bound vectors. Not for use from several threads at once.

    Attributes:
        layers: as given.
        input_shape: of one sample.
        output_shape: of one sample's output.
        dtype: of parameters and activations, float32 or float64.
        layout: where each parameter lies in the vector.
        steps: the layers in their places.
        ready_ranges: of the vector, what each layer's backward pass completes.
    """

    def __init__(self, layers: Sequence[Layer[Any]], input_shape: Sequence[int], dtype: Any = np.float32) -> None:
        """Fits the layers together.

        Raises:
            UsageError: shapes that do not fit, or another dtype.
        """
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float64):
            raise UsageError(f"model: expected dtype float32 or float64, got {self.dtype}")
        steps, output_shape = sequential.fit(layers, tuple(input_shape))
        self._drawn_from = sequential.check_ties(steps)
        self._assemble(steps, tuple(input_shape), output_shape)

    def _assemble(self, steps: Sequence[sequential.Step], input_shape: Shape, output_shape: Shape) -> None:
        """Takes layers in their places, on no vector yet."""
        self.steps = steps
        self.layers = tuple(step.layer for step in steps)
        self.input_shape, self.output_shape = input_shape, output_shape
        self._first = sequential.first_with_parameters(self.steps)
        tied = sequential.tied_places(self.steps)
        specs = [spec for step in self.steps for spec in step.specs if spec.name not in tied]
        forms = {spec.name: spec.torch for spec in specs if spec.torch is not None}
        parts = {spec.name: spec.part for spec in specs if spec.part is not None}
        self.layout = Layout([(spec.name, spec.shape) for spec in specs], parts=parts, tied=tied, torch=forms)
        self._shared = sequential.SharedGradients(self.steps, tied, self.dtype)
        # Names of one parameter in several layers are added as these are passed: not in halves.
        self._late = [() if tied else step.layer.late(step.shape) for step in self.steps]
        self.ready_ranges = self._ready_ranges()
        self._xp: Any = None
        self._params: list[Arrays] = []
        self._grads: list[Arrays] = []
        self._parts: list[Arrays] = []
        self._padding: list[list[Array]] = []

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shape of one sample in front of each layer."""
        return tuple(step.shape for step in self.steps)

    @property
    def names_in_whole(self) -> dict[str, str]:
        """For each parameter of the layout, its name in the whole model: of a tied one, the name that it is tied to."""
        placed = {parameter.name for parameter in self.layout.parameters}
        return {spec.name: spec.tied or spec.name for s in self.steps for spec in s.specs if spec.name in placed}

    def cut(self, start: int, stop: int) -> "Stage":
        """Returns the layers from `start` up to `stop` as a stage of their own, on no vector yet.

        Its parameters have their names in this stage, and the same first values. The last layers of a model are a
        model too, with its loss; such a part may be without parameters.

        Raises:
            UsageError: no layers, or layers that this stage does not have.
        """
        if not 0 <= start < stop <= len(self.layers):
            expected = f"expected at least one of the layers 0 to {len(self.layers) - 1}"
            raise UsageError(f"cut: {expected}, got those from {start} up to {stop}")
        ends = stop == len(self.layers)
        part = copy.copy(self)
        part.__class__ = type(self) if ends else Stage
        part._assemble(
            self.steps[start:stop], self.steps[start].shape, self.output_shape if ends else self.steps[stop].shape
        )
        return part

    def recomputed(self: S, segments: Sequence[range]) -> S:
        """Returns the same on no vector yet, that keeps only the output of each segment of layers for backward.

        Backward computes the rest once more; gradients have the same bits. `psgd.nn.recompute.segments` chooses.

        Args:
            segments: ranges of layers, in order, apart from each other.

        Raises:
            UsageError: ranges that are empty, overlap, or are beyond the layers.
        """
        ends = [0, *(end for each in segments for end in (each.start, each.stop)), len(self.layers)]
        if ends != sorted(ends) or not all(segments):
            raise UsageError(f"recomputed: expected ranges of the {len(self.layers)} layers in order, got {segments}")
        return self.regrouped(recomputed.merged(self.steps, segments))

    def regrouped(self: S, steps: Sequence[sequential.Step]) -> S:
        """Returns the same on no vector yet, whose layers are these steps: several as one, each in another."""
        part = copy.copy(self)
        part._assemble(steps, self.input_shape, self.output_shape)
        return part

    def _ready_ranges(self) -> list[range]:
        """What each layer completes in backward: from its parameters up to the next layer's, padding included."""
        offsets = {p.name: p.offset for p in self.layout.parameters}
        ranges = []
        stop = self.layout.size
        for step in reversed(self.steps):
            start = min((offsets[spec.name] for spec in step.specs if spec.name in offsets), default=stop)
            ranges.append(range(start, stop))
            stop = start
        return ranges[::-1]

    def init(self, seed: int) -> npt.NDArray[Any]:
        """Returns first parameters on the host, as each layer's initializers draw them.

        Drawn by (seed, the layer's number in the whole): the same on every rank and however the layers are cut,
        and up to rounding in both dtypes.
        """
        vector = np.zeros(self.layout.size, self.dtype)
        views = self.layout.views(vector)
        for name, values in self.first_values(seed):
            views[name][...] = values
        return vector

    def first_values(self, seed: int) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Draws what `init` returns, one parameter after the other: its name in the layout, and its values."""
        for step in recomputed.single(self.steps):
            rng = generator(seed, "init", step.index)
            for spec in step.specs:
                if spec.tied is None:
                    yield spec.name, spec.draw(rng)
                elif spec.name not in dict(self.layout.tied):  # the layer that it shares with is in another part
                    source = self._drawn_from[spec.tied]
                    yield spec.name, sequential.draw_one(source, generator(seed, "init", source.index), spec.tied)

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
        gaps = [] if grads is None else [(g.start, grads[g.start : g.stop]) for g in self.layout.padding]
        self.bind_views(xp, self.layout.views(params), None if grads is None else self.layout.views(grads), gaps)

    def bind_views(self, xp: Any, params: Views, grads: Views | None, gaps: Iterable[tuple[int, Array]] = ()) -> None:
        """As `bind`, of parameters that lie anywhere: each by name, and of the gradient's padding its start too."""
        self._params = self._by_step(params)
        self._grads = [] if grads is None else self._shared.apart(self._by_step(grads), xp)
        self._padding = [[gap for start, gap in gaps if start in ready] for ready in self.ready_ranges]
        self._parts = self._parts if xp is self._xp else []
        self._xp = xp

    def _by_step(self, views: Views) -> list[Arrays]:
        return [tuple(views[spec.name] for spec in step.specs) for step in self.steps]

    def context(self, batch: int, wants_dx: bool = False, xp: Any = None, trains: bool = True) -> Context:
        """Makes all buffers for up to `batch` samples, where the bound vectors are (unbound: on the host).

        Args:
            batch: most samples of a pass.
            wants_dx: `backward` is to return the input's gradient too.
            xp: makes the buffers, in place of the vectors' module: `psgd.estimate.counting.CountingArrays`.
            trains: False where no backward pass is to follow: layers then share buffers.

        Raises:
            UsageError: `batch` below 1.
        """
        if batch < 1:
            raise UsageError(f"context: expected a batch of 1 or more, got {batch}")
        xp = xp or self._xp or np
        draws = Draws(xp, batch)
        room = Room(xp, batch, self.dtype, self.input_shape, wants_dx, draws=draws, trains=trains)
        return Context(batch, xp, self, sequential.allocate(self.steps, room), wants_dx, draws, trains)

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
        ctx.output, ctx.half = None, False  # a forward pass that waits for its backward pass has lost its activations
        x = x.reshape(n, *self.input_shape)
        for step, state, params in zip(self.steps, ctx.states, self._params, strict=True):
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
        self._check_backward(ctx, dy)
        return self._back(ctx, dy, on_ready, accumulate)

    def backward_input(self, ctx: Context, dy: Array, accumulate: bool = False) -> Array:
        """The first half of `backward`: returns the input's gradient, and leaves the weights' to `backward_weights`.

        It leaves what layers can leave; other gradients it writes.

        Args:
            ctx: after one `forward`.
            dy: as `backward`; must stay unchanged until `backward_weights`.
            accumulate: as `backward`; both halves are told the same.

        Raises:
            UsageError: as `backward`.
        """
        self._check_backward(ctx, dy)
        ctx.half = True
        return self._back(ctx, dy, None, accumulate, half=True)

    def backward_weights(self, ctx: Context, on_ready: OnReady | None = None, accumulate: bool = False) -> None:
        """The second half, any time after the first, and before the context's next `forward`.

        Several contexts may be between the halves. Gradients are added in the order of these calls.

        Args:
            ctx: after one `backward_input`, which this uses up.
            on_ready: as `backward`.
            accumulate: as `backward`.

        Raises:
            UsageError: no `backward_input` before, or no grads bound.
        """
        if not ctx.half or not self._grads:
            raise UsageError("backward_weights: needs backward_input on this context before it, and bound grads")
        ctx.half = False
        targets = self._scratch() if accumulate else self._grads
        last = -1 if ctx.wants_dx else self._first - 1
        for index in range(len(self.steps) - 1, last, -1):
            if late := self._late[index]:
                self.steps[index].layer.backward_weights(ctx.states[index], targets[index])
                self._add(ctx, index, targets, late, accumulate)
            if on_ready is not None and self.ready_ranges[index]:
                on_ready(self.ready_ranges[index])

    def _check_backward(self, ctx: Context, dy: Array) -> None:
        """Uses the forward pass up, or says what is wrong."""
        if ctx.output is None or not (self._grads and ctx.trains):
            raise UsageError("backward: needs a forward pass before it, on this context for training, and bound grads")
        y, ctx.output = ctx.output, None
        if dy.shape != y.shape or dy.dtype != self.dtype or not isinstance(dy, ctx.xp.ndarray):
            raise UsageError(
                f"backward: dy: expected {y.dtype} {y.shape} on {ctx.xp.__name__}, got {dy.dtype} {dy.shape}"
            )

    def _back(self, ctx: Context, dy: Array, on_ready: OnReady | None, accumulate: bool, half: bool = False) -> Array:
        targets = self._scratch() if accumulate else self._grads
        last = -1 if ctx.wants_dx else self._first - 1
        for index in range(len(self.steps) - 1, last, -1):
            layer, late = self.steps[index].layer, self._late[index] if half else ()
            back = layer.backward_input if late else layer.backward
            dy = back(ctx.states[index], dy, self._params[index], targets[index])
            self._shared.join(index, targets[index])
            now = [place for place in range(len(targets[index])) if place not in late]
            self._add(ctx, index, targets, now, accumulate)
            for gap in self._padding[index]:
                gap.fill(0)
            if on_ready is not None and self.ready_ranges[index]:
                on_ready(self.ready_ranges[index])
        return dy if ctx.wants_dx else None

    def _add(self, ctx: Context, index: int, targets: list[Arrays], places: Iterable[int], accumulate: bool) -> None:
        """Adds the gradients at these places of a layer to its bound ones, where they were not written there."""
        for place in places if accumulate else ():
            total, part = self._grads[index][place], targets[index][place]
            if total is not part:
                ctx.xp.add(total, part, out=total)

    def _scratch(self) -> list[Arrays]:
        """Gradients to be added, one layer's at a time: a buffer of the largest layer's size, made once."""
        if not self._parts:
            sizes = [[math.prod(spec.shape) for spec in step.specs] for step in self.steps]
            vector = self._xp.empty(max(map(sum, sizes), default=0), self.dtype)
            for step, counts in zip(self.steps, sizes, strict=True):
                pieces = self._xp.split(vector[: sum(counts)], np.cumsum(counts)[:-1].tolist()) if counts else []
                shaped = (piece.reshape(spec.shape) for piece, spec in zip(pieces, step.specs, strict=True))
                self._parts.append(tuple(shaped))
            self._parts = self._shared.apart(self._parts, self._xp)
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
