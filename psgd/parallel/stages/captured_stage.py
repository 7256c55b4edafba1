"""A stage on a GPU: each of its passes is recorded as a CUDA graph and started by one call.

A pass of a stage is many small kernels, and starting each takes the host longer than many of them run. A graph needs
the same memory each time, so a context has an input and a gradient of its own, to which what comes in is copied.

What layers keep in a context for the next pass (views, sizes) they keep when Python runs them, not when a graph does.
So it is noted when a pass is recorded, and put back before Python runs a pass that follows a graph's.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from psgd.kernels.array import Array
from psgd.nn.gates.left_behind import LeftBehind, noted, put_back
from psgd.nn.stage import Context, OnReady, Stage
from psgd.parallel.stages.interface import GoesToGpu, RunsOnGpu

Key = tuple[Any, ...]


@dataclass(eq=False)
class _Fixed:
    """What belongs to one context.

    Attributes:
        x: its input.
        dy: its output's gradient; None where that comes from a loss.
        graphs: by pass what starts it; None after the first time, when kernels were compiled.
        results: by pass what it returns.
        left: by pass what layers kept for the next one.
        last: the newest pass, of those that leave something.
        by_python: whether Python ran it.
    """

    x: Array
    dy: Array
    graphs: dict[Key, Callable[[], None] | None] = field(default_factory=dict)
    results: dict[Key, Array] = field(default_factory=dict)
    left: dict[Key, LeftBehind] = field(default_factory=dict)
    last: Key = ()
    by_python: bool = True


class CapturedStage:
    """What `psgd.parallel.stages.chunk.Chunk` takes in place of a stage on the host.

    Args:
        stage: or the model that ends a pipeline.
        gpu: `psgd.parallel.stages.gpu.Gpu`.
        most: microbatches of a batch.
        last: it has a loss.
        captures: whether passes become graphs; else they run as on the host. Asked when one has run.
    """

    def __init__(self, stage: Stage, gpu: Any, most: int, last: bool, captures: Callable[[], bool]) -> None:
        self._stage, self._gpu, self._last = stage, gpu, last
        self._captures = captures
        waits = not last or stage.layers[-1].loss is not None
        self._losses = None if waits else gpu.losses(most)
        self._fixed: dict[Context, _Fixed] = {}
        self._vectors: tuple[Array, Array] = (None, None)
        self._place: Key = ()
        self._turned: Key = ()  # the place of which the stage has views
        self._known: set[Key] = set()
        self._count = 0

    def bind(self, params: Array, grads: Array) -> None:
        """As `Stage.bind`; graphs are kept for each pair of vectors.

        A pass by its graph needs the addresses alone. So of vectors that it knows the stage makes views later, in
        `turn`: where weights change from pass to pass, that would take longer than starting the pass.
        """
        place = self._gpu.address(params), None if grads is None else self._gpu.address(grads)
        if place not in self._known:  # the stage says what is wrong with them
            self._stage.bind(params, grads)
            self._known.add(place)
            self._turned = place
        self._vectors, self._place = (params, grads), place

    def turn(self) -> None:
        """The stage itself computes with the bound vectors from now on."""
        if self._turned != self._place:
            self._stage.bind(*self._vectors)
            self._turned = self._place

    def begin(self) -> None:
        """A batch begins."""
        self._count = 0
        if self._losses is not None:
            self._losses.begin()

    def done(self) -> bool:
        """Whether the batch's losses are there. Does not block."""
        return self._losses is None or bool(self._losses.done())

    def context(self, batch: int, wants_dx: bool = False) -> Context:
        """As `Stage.context`."""
        self.turn()
        stage, empty = self._stage, self._gpu.xp.empty
        made = stage.context(batch, wants_dx)
        x = empty((batch, *stage.input_shape), stage.dtype)
        self._fixed[made] = _Fixed(x, None if self._last else empty((batch, *stage.output_shape), stage.dtype))
        return made

    def forward(self, ctx: Context, x: Array) -> Array:
        """As `Stage.forward`; x may be on the host, and need not stay unchanged."""
        x = self._taken(self._fixed[ctx].x[: len(x)], x)
        key = "F", len(x), ctx.draws.on, *self._place
        y = self._do(ctx, key, lambda: self._stage.forward(ctx, x), leaves=True)
        ctx.output, ctx.half = y, False
        return y

    def loss(self, ctx: Context, y: Array, *, batch_size: int) -> tuple[Array, Any]:
        """As `Model.loss`; what it returns as the loss is a number once `done` is true."""
        model: Any = self._stage
        labels = self._labels(ctx, y)
        if self._losses is None:
            self.turn()
            self._put_back(self._fixed[ctx])
            found: tuple[Array, Any] = model.loss(ctx, labels, batch_size=batch_size)
            return found
        start = self._losses.start
        key = "L", len(y), batch_size, *self._place
        dy = self._do(ctx, key, lambda: model.loss(ctx, labels, start, batch_size)[0])
        self._losses.mark()
        self._count += 1
        return dy, _LossOnGpu(self._losses, self._count - 1)

    def backward(self, ctx: Context, dy: Array, on_ready: OnReady | None = None, accumulate: bool = False) -> Array:
        """As `Stage.backward`."""
        dy = self._gradient(ctx, dy)
        key = "B", accumulate, *self._place, *self._fixed[ctx].last
        dx = self._do(ctx, key, lambda: self._stage.backward(ctx, dy, on_ready, accumulate), on_ready is None)
        ctx.output = None
        return dx

    def backward_input(self, ctx: Context, dy: Array, accumulate: bool = False) -> Array:
        """As `Stage.backward_input`."""
        dy = self._gradient(ctx, dy)
        key = "X", accumulate, *self._place, *self._fixed[ctx].last
        dx = self._do(ctx, key, lambda: self._stage.backward_input(ctx, dy, accumulate), leaves=True)
        ctx.output, ctx.half = None, True
        return dx

    def backward_weights(self, ctx: Context, on_ready: OnReady | None = None, accumulate: bool = False) -> None:
        """As `Stage.backward_weights`."""
        key = "W", accumulate, *self._place, *self._fixed[ctx].last
        self._do(ctx, key, lambda: self._stage.backward_weights(ctx, on_ready, accumulate), on_ready is None)
        ctx.half = False

    def evaluate(self, ctx: Context, x: Array, y: Array, tally: Any) -> tuple[float, float]:
        """As `Model.evaluate`; waits for the GPU."""
        self.turn()
        model: Any = self._stage
        into = self._fixed[ctx].x[: len(x)]
        found: tuple[float, float] = model.evaluate(ctx, self._taken(into, x), self._labels(ctx, y), tally)
        return found

    def _do(
        self, ctx: Context, key: Key, run: Callable[[], Array], records: bool = True, leaves: bool = False
    ) -> Array:
        """Starts a pass: the first time by Python, the second time to record it, from then on as recorded.

        A key names the vectors of the pass itself and, by `last`, those of the passes before it: weights that a step
        has changed since then lie elsewhere in backward than in forward.
        """
        fixed = self._fixed[ctx]

        def kept() -> None:
            fixed.results[key] = run()

        launch = fixed.graphs.get(key)
        by_python = launch is None or not records
        if by_python:
            self.turn()
            self._put_back(fixed)
            if records and key in fixed.graphs and self._captures():
                launch = fixed.graphs[key] = self._gpu.launcher(kept)
            else:
                kept()
                if records:
                    fixed.graphs[key] = None
        if launch is not None and records:
            launch()
        if leaves:
            if by_python and launch is not None:
                fixed.left[key] = noted(ctx.states)
            fixed.last, fixed.by_python = key, by_python
        return fixed.results[key]

    def _put_back(self, fixed: _Fixed) -> None:
        """Layers know again what the newest pass has left for the next one."""
        if not fixed.by_python:
            put_back(fixed.left[fixed.last])
            fixed.by_python = True

    def _taken(self, into: Array, source: Array) -> Array:
        """Copies to a context's memory; what does not fit there is left to the stage, which says why."""
        if source.dtype != into.dtype or source.size != into.size:
            return source
        self._gpu.copy(into, source)
        return into

    def _gradient(self, ctx: Context, dy: Array) -> Array:
        fixed = self._fixed[ctx]
        return dy if fixed.dy is None else self._taken(fixed.dy[: len(dy)], dy)

    def _labels(self, ctx: Context, y: Array) -> Array:
        """Labels on the GPU, in the context's memory where they fit."""
        y = self._gpu.xp.asarray(y)
        if y.shape != (len(y), *ctx.labels.shape[1:]) or y.dtype.kind not in "iu":
            return y
        labels = ctx.labels[: len(y)]
        labels[...] = y
        return labels


def on_gpu(stage: Stage, gpu: Any, most: int, last: bool, captures: Callable[[], bool]) -> "CapturedStage | RunsOnGpu":
    """What a pipeline runs a stage by on a GPU: passes that are recorded, or the stage itself if it knows how.

    Args:
        stage: or the model that ends a pipeline.
        gpu: as `CapturedStage`.
        most: as `CapturedStage`.
        last: as `CapturedStage`.
        captures: as `CapturedStage`.
    """
    if isinstance(stage, GoesToGpu):
        return stage.on_gpu(gpu, most)
    return CapturedStage(stage, gpu, most, last, captures)


class _LossOnGpu:
    """A loss that a GPU is computing."""

    def __init__(self, losses: Any, place: int) -> None:
        self._losses, self._place = losses, place

    def __float__(self) -> float:
        return float(self._losses.read(self._place))
