"""A stage of PyTorch's layers on a GPU: each of its passes is recorded as a CUDA graph and started by one call.

Starting the kernels of a pass one by one takes the host longer than small ones run. A graph needs the same memory each
time: so each microbatch that may be alive has an input and a gradient of its own, and memory for what autograd keeps.

Where weights change from microbatch to microbatch, as in a pipeline that is never empty, there are graphs for each
version's memory. Those of one context use one pool: a microbatch's passes are over before the context's next one, so
what autograd keeps of it may lie where that of another version does.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from psgd.kernels.array import Array
from psgd.nn.stage import OnReady
from psgd.torch.pieces.graph_context import GraphContext
from psgd.torch.pieces.recorded.same_each_time import draws
from psgd.torch.pieces.recorded.torch_graphs import TorchGraphs
from psgd.torch.same_memory import array_of

Launch = Callable[[], None]
_WARM = 2
"""Passes by Python before one is recorded, in which libraries are loaded and choose their kernels."""


@dataclass(eq=False)
class _Passes:
    """Of one context, with parameters at one place.

    Attributes:
        count: microbatches whose passes could have been recorded.
        graphs: what starts each pass.
        found: what each pass gives.
        arrays: the same as arrays, since making one of a tensor takes long.
    """

    count: int = 0
    graphs: dict[str, Launch] = field(default_factory=dict)
    found: dict[str, torch.Tensor | None] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)


@dataclass(eq=False)
class _Held:
    """What belongs to one context.

    Attributes:
        samples: of a pass that is recorded.
        recording: what this microbatch's passes do: None: run by Python; True: are recorded; False: are started.
        grads: the place of the gradients.
        pool: memory of the graphs.
        passes: by the place of the parameters.
        now: of this microbatch.
        given: what each pass takes: tensors that stay.
        arrays: the same as arrays.
        share: of the mean loss, as the graph has it.
    """

    samples: int
    recording: bool | None = None
    grads: int = 0
    pool: object = None
    passes: dict[int, _Passes] = field(default_factory=dict)
    now: _Passes = field(default_factory=_Passes)
    given: dict[str, torch.Tensor] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    share: float = 0.0


class RecordedStage:
    """What `psgd.parallel.stages.chunk.Chunk` takes in place of a stage of PyTorch's layers.

    Only passes of training with as many samples as a context is for are recorded.

    Args:
        stage: `psgd.torch.pieces.torch_stage.TorchStage`, on the GPU, of modules that start the same kernels in every
            pass.
        gpu: `psgd.parallel.stages.gpu.Gpu`.
    """

    def __init__(self, stage: Any, gpu: Any) -> None:
        self._stage, self._gpu = stage, gpu
        self._graphs = None if gpu.xp is np else TorchGraphs(stage.device)
        self._fixed: dict[GraphContext, _Held] = {}
        self._vectors: tuple[Any, Any] = (None, None)
        self._may = False
        self._draws = any(map(draws, stage.modules))

    def bind(self, params: Any, grads: Any = None) -> None:
        """As `TorchStage.bind`, but of a pass by its graph the modules need not know: that would take longer."""
        self._vectors = params, grads

    def turn(self) -> None:
        """The modules' tensors are views of the bound vectors from now on."""
        self._stage.bind(*self._vectors)

    def begin(self) -> None:
        """A batch begins."""
        stage = self._stage
        stage.begin()
        self._may = stage.records and all(part.training for module in stage.modules for part in module.modules())

    def done(self) -> bool:
        """Whether the batch's losses are there. Does not block."""
        return bool(self._stage.done())

    def context(self, batch: int, wants_dx: bool = False) -> GraphContext:
        """As `TorchStage.context`."""
        made: GraphContext = self._stage.context(batch, wants_dx)
        self._fixed[made] = _Held(batch)
        return made

    def forward(self, ctx: GraphContext, x: Any) -> Array:
        """As `TorchStage.forward`."""
        stage, fixed = self._stage, self._fixed[ctx]
        fixed.recording = self._choose(fixed, ctx.draws.on, len(x))
        if fixed.recording is not False:
            self.turn()
        if fixed.recording is None:
            x = stage.tensor(x)
            with self._aside():
                y = stage.output(ctx, x)
            return array_of(y)
        self._take(fixed, "x", x, stage.tensor)
        self._do(ctx, "forward", lambda: stage.output(ctx, fixed.given["x"]))
        return fixed.now.arrays["forward"]

    def loss(self, ctx: GraphContext, y: Any, *, batch_size: int) -> tuple[Any, Any]:
        """As `TorchTail.loss`."""
        tail: Any = self._stage
        fixed, share = self._fixed[ctx], len(y) / batch_size
        if fixed.recording is None:
            labels = tail.labels(y)
            with self._aside():
                mean = ctx.y = tail.mean(ctx, labels)
            value = mean.detach() * share
            return torch.full_like(value, share), tail.losses.take(value)

        def run() -> torch.Tensor:
            ctx.y = mean = tail.mean(ctx, fixed.given["labels"])
            return (mean.detach() * fixed.given["dy"]).reshape(1).double()

        self._take(fixed, "labels", y, tail.labels)
        if share != fixed.share:
            kind = torch.float64 if tail.dtype == np.float64 else torch.float32
            fixed.given.setdefault("dy", torch.empty((), dtype=kind, device=tail.device)).fill_(share)
            fixed.share = share
        self._do(ctx, "loss", run)
        return fixed.given["dy"], tail.losses.copy(fixed.now.arrays["loss"])

    def backward(self, ctx: GraphContext, dy: Any, on_ready: OnReady | None = None, accumulate: bool = False) -> Array:
        """As `TorchStage.backward`."""
        dx = self.backward_input(ctx, dy, accumulate)
        self.backward_weights(ctx, on_ready)
        return dx

    def backward_input(self, ctx: GraphContext, dy: Any, accumulate: bool = False) -> Array:
        """As `TorchStage.backward_input`."""
        stage, fixed = self._stage, self._fixed[ctx]
        if fixed.recording is not False:
            self.turn()  # other microbatches have come in between
        if fixed.recording is None:
            dy = stage.tensor(dy)
            with self._aside():
                dx = stage.input_gradient(ctx, dy, accumulate)
            return None if dx is None else array_of(dx)
        if stage.moving and not accumulate:
            self._vectors[1].fill(0)  # ahead of the graph, which adds: any microbatch may be a step's first one
        self._take(fixed, "dy", dy, stage.tensor)
        self._do(ctx, "backward", lambda: stage.input_gradient(ctx, fixed.given["dy"], accumulate=True))
        return fixed.now.arrays.get("backward")

    def backward_weights(self, ctx: GraphContext, on_ready: OnReady | None = None, accumulate: bool = False) -> None:
        """As `TorchStage.backward_weights`."""
        self._stage.backward_weights(ctx, on_ready)

    def evaluate(self, ctx: GraphContext, x: Any, y: Any, tally: Any = None) -> tuple[float, float]:
        """As `TorchTail.evaluate`."""
        self.turn()
        tail: Any = self._stage
        found: tuple[float, float] = tail.evaluate(ctx, x, y, tally)
        return found

    def _choose(self, fixed: _Held, training: bool, samples: int) -> bool | None:
        """What the passes of the next microbatch do; see `_Held.recording`."""
        if not self._may or not training or samples != fixed.samples or (place := self._place()) is None:
            return None
        params, grads = place
        if grads != fixed.grads:  # its graphs are of other vectors
            fixed.grads = grads
            fixed.passes.clear()
            fixed.pool = None if self._graphs is None else self._graphs.pool()
        fixed.now = now = fixed.passes.setdefault(params, _Passes())
        now.count += 1
        return None if now.count <= _WARM else now.count == _WARM + 1

    def _place(self) -> tuple[int, int] | None:
        """Where parameters and gradients of the next pass are; None if a gradient has no memory yet."""
        stage = self._stage
        if stage.moving:
            params, grads = map(self._gpu.address, self._vectors)
            return params, grads
        first = next((p for m in stage.modules for p in m.parameters() if p.requires_grad and p.grad is not None), None)
        return None if first is None or first.grad is None else (first.data_ptr(), first.grad.data_ptr())

    def _take(self, fixed: _Held, name: str, value: Any, tensor: Callable[[Any], torch.Tensor]) -> None:
        """Puts what a pass takes to where its graph looks for it.

        Args:
            fixed: of the context.
            name: what it is.
            value: a tensor or an array of either side.
            tensor: makes a tensor of it where the stage computes.
        """
        into = fixed.given.get(name)
        if value is into:
            return
        there = fixed.arrays.get(name)
        if isinstance(value, self._gpu.xp.ndarray) and there is not None and value.dtype == there.dtype:
            self._gpu.copy(there, value)
            return
        value = tensor(value)
        if into is None:
            into = fixed.given[name] = torch.empty_like(value, memory_format=torch.contiguous_format)
            fixed.arrays[name] = array_of(into)
        into.copy_(value)

    def _do(self, ctx: GraphContext, name: str, run: Callable[[], torch.Tensor | None]) -> None:
        """Records a pass, if that is due, and starts it."""
        fixed, now = self._fixed[ctx], self._fixed[ctx].now

        def noted() -> None:
            now.found[name] = run()

        with self._aside(), self._seeded(ctx, name):
            if fixed.recording:
                if self._graphs is None:
                    now.graphs[name] = self._gpu.launcher(noted)
                else:
                    now.graphs[name] = self._graphs.record(noted, fixed.pool)
            now.graphs[name]()
        found = now.found[name]
        if found is not None and (fixed.recording or self._graphs is None):
            now.arrays[name] = array_of(found)

    @contextmanager
    def _seeded(self, ctx: GraphContext, name: str) -> Iterator[None]:
        """Around a recorded pass that draws, its key's numbers begin: inside they cannot, while it is recorded."""
        begins = self._draws and name != "backward"
        with self._stage.drawing(ctx) if begins else nullcontext():
            key, ctx.key = ctx.key, None
            try:
                yield
            finally:
                ctx.key = key

    @contextmanager
    def _aside(self) -> Iterator[None]:
        if self._graphs is None:
            yield
            return
        with self._graphs.aside():
            yield
