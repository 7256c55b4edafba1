"""Layers whose activations are not kept: backward computes them a second time, by `torch.utils.checkpoint`.

The second time nothing but the values is the same: buffers, as BatchNorm's statistics, are moved once a pass, and what
is drawn is drawn alike.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from psgd.nn.recompute.segments import Segments, choose
from psgd.torch.pieces.cut_linears import CutWeights

Modules = Sequence[torch.nn.Module]


def forward(modules: Modules, segments: Segments, x: torch.Tensor) -> torch.Tensor:
    """Runs layers in a row; with a graph, those of a segment so that its input alone is kept.

    Args:
        modules: the layers.
        segments: of their numbers.
        x: their input.
    """
    twice, at = {each.start: each for each in segments}, 0
    while at < len(modules):
        part = twice.get(at, range(at, at + 1))
        layers = modules[part.start : part.stop]
        x = _again(layers, x) if at in twice and torch.is_grad_enabled() else _in_a_row(layers, x)
        at = part.stop
    return x


def writes_its_input(module: torch.nn.Module) -> bool:
    """Whether a layer may work in place, so that it needs a copy of what must stay as it is."""
    return any(getattr(part, "inplace", False) for part in module.modules())


def segments(modules: Modules, x: torch.Tensor, wish: str, alive: int = 1) -> Segments:
    """Which layers to compute twice; see `psgd.nn.recompute.segments.choose`.

    Args:
        modules: the layers, on any device: the trial is on the meta device.
        x: of the shape and dtype of a microbatch, on the meta device, a leaf that needs a gradient as in the run.
        wish: all, a number of layers, or bytes of a microbatch's activations.
        alive: microbatches that are between their passes at once, for `all`.

    Raises:
        UsageError: bytes that are too few.
    """
    saved, inputs = _trial(modules, x)
    times = alive if wish == "all" else 1

    def nbytes(chosen: Segments) -> int:
        """What is kept until backward, and the most that a segment makes again then."""
        inside = {index for each in chosen for index in each}
        kept = {key: size for index, each in enumerate(saved) if index not in inside for key, size in each.items()}
        kept |= {inputs[each.start][0]: inputs[each.start][1] for each in chosen}
        again = [
            {key: size for index in each for key, size in saved[index].items() if key not in kept} for each in chosen
        ]
        return times * sum(kept.values()) + max((sum(each.values()) for each in again), default=0)

    return choose(wish, len(modules), nbytes)


def _in_a_row(layers: Modules, x: torch.Tensor) -> torch.Tensor:
    for layer in layers:
        x = layer(x)
    return x


def _again(layers: Modules, x: torch.Tensor) -> torch.Tensor:
    copies = writes_its_input(layers[0])

    def run(given: torch.Tensor) -> torch.Tensor:
        return _in_a_row(layers, given.clone() if copies else given)

    # Ranks that sum in a layer must all come as far as the others.
    sums = any(isinstance(part, CutWeights) for layer in layers for part in layer.modules())
    with set_checkpoint_early_stop(not sums):
        found: torch.Tensor = checkpoint(
            run, x, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), _buffers_apart(layers))
        )
    return found


@contextlib.contextmanager
def _buffers_apart(layers: Modules) -> Iterator[None]:
    """Inside, modules have copies of their buffers: what happens to these is forgotten."""
    owners = [part for layer in layers for part in layer.modules() if part._buffers]
    before = [dict(part._buffers) for part in owners]
    try:
        for part in owners:
            for name, buffer in part._buffers.items():
                if buffer is not None:
                    part._buffers[name] = buffer.detach().clone()
        yield
    finally:
        for part, buffers in zip(owners, before, strict=True):
            part._buffers.update(buffers)


def _trial(modules: Modules, x: torch.Tensor) -> tuple[list[dict[int, int]], list[tuple[int, int]]]:
    """Of each layer the bytes of what autograd keeps of it, by storage; and storage and bytes of its input."""
    saved: list[dict[int, int]] = []
    inputs: list[tuple[int, int]] = []
    alive: list[Any] = []  # so that no storage takes another's place
    y = x.clone() if writes_its_input(modules[0]) else x
    for module in modules:
        state = {
            name: torch.empty_like(p, device="meta").requires_grad_(p.requires_grad)
            for name, p in module.named_parameters()
        }
        state |= {name: torch.empty_like(b, device="meta") for name, b in module.named_buffers()}
        known = {each.untyped_storage()._cdata for each in state.values()}
        kept: dict[int, int] = {}

        def count(tensor: torch.Tensor, kept: dict[int, int] = kept, known: set[int] = known) -> torch.Tensor:
            storage = tensor.untyped_storage()
            alive.append(storage)
            if storage._cdata not in known:
                kept[storage._cdata] = storage.nbytes()
            return tensor

        storage = y.untyped_storage()
        alive.extend((storage, *state.values()))
        inputs.append((storage._cdata, storage.nbytes()))
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            y = functional_call(module, state, (y,))
        saved.append(kept)
    return saved, inputs
