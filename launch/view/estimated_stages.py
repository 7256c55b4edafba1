"""The memory of ranks that hold a PyTorch module in pieces, by passes on the meta device, which have no memory."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from psgd.config import TrainConfig
from psgd.estimate.pieces import LINKS, STASHED
from psgd.estimate.rank_memory import ACTIVATIONS, BATCH, EVALUATION, Estimate, of_vectors, state_vectors
from psgd.estimate.whole_run import RunMemory
from psgd.kernels.notice import in_mesh
from psgd.nn.evaluation import evaluated_at_once
from psgd.parallel.cuts.decision import Decision
from psgd.parallel.cuts.partition import Cuts
from psgd.parallel.stages import links
from psgd.torch.fake_run import LiveBytes
from psgd.torch.pieces import computed_twice, layer_costs
from psgd.torch.pieces.by_tensor import cut_alone
from psgd.torch.pieces.sequential_stages import SequentialStages
from psgd.torch.pieces.torch_stage import TorchStage, TorchTail
from psgd.training.torch_backend import input_dtype
from psgd.training.torch_module import UncutModule

BUFFERS = "buffers and frozen parameters"


class Place:
    """Of a communicator what a cut asks for: no rank is there.

    Args:
        size: ranks.
        rank: which one.
    """

    def __init__(self, size: int, rank: int) -> None:
        self.size, self.rank = size, rank


def of_module(
    config: TrainConfig, make: Callable[[], object], shape: tuple[int, ...], servers: int, workers: int
) -> Any:
    """Estimates a run with a mesh.

    Args:
        config: of the run.
        make: makes the module, or it and a loss; called with the meta device as default.
        shape: of one sample.
        servers: of each piece.
        workers: each a copy.

    Returns:
        A `RunMemory`; what `make` has made, if it is no module of PyTorch.

    Raises:
        UsageError: a module that cannot be cut so.
    """
    with torch.device("meta"):
        made = make()
    parts = made if isinstance(made, tuple) else (made, None)
    if len(parts) != 2 or not isinstance(parts[0], torch.nn.Module):
        return made
    model = UncutModule(parts[0].to("meta"), parts[1], shape)
    axes = config.axes
    wish = Decision(axes.get("pipe", 1), config.batch_size, config.microbatches, config.pipe_schedule, config.cut)
    sample = torch.empty(shape, dtype=input_dtype(model.module), device="meta")
    whole = SequentialStages(model.module, sample, model.loss, uncut=wish.ranks == 1)
    cuts = wish.cuts(
        cast(Any, whole), state_vectors(config), None, lambda n, state: layer_costs.measure(whole, n, state)
    )
    found: list[Estimate] = []
    ranks = axes.get("tensor", 1)
    for tensor in range(ranks):
        mine = whole
        if ranks > 1:
            cut = cut_alone(copy.deepcopy(model.module), cast(Any, Place(ranks, tensor)))
            mine = SequentialStages(cut, sample, model.loss, uncut=wish.ranks == 1)
        for pipe in range(wish.ranks):
            passes, vector = _rank(config, mine, wish, cuts, pipe)
            place = in_mesh({"pipe": pipe, "tensor": tensor}, {"pipe": wish.ranks, "tensor": ranks})
            for each in of_vectors(config, vector, servers, workers, passes, communicators=int(ranks > 1)):
                found.append(replace(each, role=f"{each.role} {place}"))
    parameters = whole.layout().size
    return RunMemory(config, found, parameters, str(whole.dtype), lambda batch: 0)


def _rank(
    config: TrainConfig, whole: SequentialStages, wish: Decision, cuts: Cuts, pipe: int
) -> tuple[dict[str, int], int]:
    """What a rank needs for its passes, and the bytes of its parameters."""
    ends = (0, *cuts, len(whole.layers))
    places = range(pipe, len(ends) - 1, wish.ranks)
    plan, each = wish.plan(cuts), whole.dtype.itemsize
    vector = sum(whole.cut(ends[at], ends[at + 1]).layout.size for at in places) * each
    tensors = {
        id(t): t
        for at in places
        for layer in whole.layers[ends[at] : ends[at + 1]]
        for t in (*layer.module.parameters(), *layer.module.buffers())
    }
    trained = sum(t.nbytes for t in tensors.values() if t.requires_grad)
    sample = whole.sample.numel() * each + 8
    alive = -(-plan.in_flight_limit[pipe] // len(places))
    ends_of_mine = [(ends[at], ends[at + 1]) for at in places]
    passes = {
        ACTIVATIONS: _peak(whole, ends_of_mine, wish.size, alive, config.recompute),
        EVALUATION: evaluated_at_once(1, config.device, in_pieces=True) * sample,
        BATCH: config.batch_size * sample,
        LINKS: _links(whole, cuts, wish, len(places), pipe),
        BUFFERS: sum(t.nbytes for t in tensors.values()) - trained,
    }
    if not plan.flushes:
        older = 1 if plan.name == "pipedream-2bw" else wish.ranks - pipe - 1
        passes[STASHED] = (1 + older) * vector
    return passes, vector


def _peak(
    whole: SequentialStages, stages: Sequence[tuple[int, int]], size: int, alive: int, recompute: str | None
) -> int:
    """The most bytes at a time while so many microbatches of each stage are alive, and backward passes begin."""
    live, kept = LiveBytes(), list[tuple[TorchStage, torch.Tensor, torch.Tensor]]()
    for start, stop in stages:
        segments = () if recompute is None else whole.segments(start, stop, recompute, size, alive)
        stage = whole.cut(start, stop)
        for module in stage.modules:
            module.train()
            live.know(*module.buffers(), *module.parameters())
            for p in module.parameters():
                if p.requires_grad:
                    p.grad = torch.zeros_like(p)  # a view of the gradients' vector, in a run
                    live.know(p.grad)
        kind = whole.sample.dtype if start == 0 else whole.gives
        for _ in range(alive):
            x = torch.empty((size, *whole.shapes[start]), dtype=kind, device="meta")
            live.know(x)  # it is in a slot, or of the batch
            x.requires_grad_(start > 0 and x.is_floating_point())
            with live:
                y = x.clone() if computed_twice.writes_its_input(stage.modules[0]) else x
                y = computed_twice.forward(stage.modules, segments, y)
                kept.append((stage, x, y))
    while kept:
        stage, x, y = kept.pop()
        with live:
            if isinstance(stage, TorchTail):
                y = stage.loss_of(y, torch.zeros(_labels(y), dtype=torch.int64, device="meta"))
            if y.requires_grad:
                torch.autograd.backward(y, torch.empty_like(y))
        del x, y
    return live.peak


def _labels(y: torch.Tensor) -> tuple[int, ...]:
    """The shape of labels: classes are along axis 1."""
    return (y.shape[0], *y.shape[2:])


def _links(whole: SequentialStages, cuts: Cuts, wish: Decision, chunks: int, pipe: int) -> int:
    """Bytes of the slots where messages from other stages arrive."""
    if not cuts:
        return 0
    depths = links.depths(wish.schedule, wish.ranks, chunks, -(-wish.batch // wish.size))
    edges = links.edges([whole.shapes[cut] for cut in cuts], wish.ranks, depths)
    return links.bytes_of(edges, pipe, wish.size, whole.dtype)
