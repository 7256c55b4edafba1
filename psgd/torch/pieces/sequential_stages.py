"""A `nn.Sequential` as a description that `psgd.parallel.pipeline.Pipeline` cuts: names, shapes and ties of layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.func import functional_call

from psgd.kernels.errors import UsageError
from psgd.nn.layer import Shape
from psgd.nn.layout import Layout
from psgd.nn.recompute.segments import Segments
from psgd.torch.pieces import computed_twice
from psgd.torch.pieces.cut_linears import CutWeights
from psgd.torch.pieces.torch_stage import LossOf, TorchStage, TorchTail

_TRIAL = 2
"""Samples of the trial: one could be taken for an axis that is not there."""


@dataclass(frozen=True)
class NamedLayer:
    """A layer of the sequence.

    Attributes:
        name: of its class.
        key: its name in the sequence; empty where it is the whole module.
        module: itself; its tensors may be on the meta device.
    """

    name: str
    key: str
    module: torch.nn.Module

    def named(self, name: str) -> str:
        """The name in the whole of what has this one in the layer."""
        return f"{self.key}.{name}" if self.key else name


class SequentialStages:
    """A whole sequence, of which each rank has some layers. Takes the place of `psgd.nn.model.Model` in a pipeline.

    Args:
        module: the whole, with tensors on the CPU or the meta device.
        sample: one sample, of which shape and dtype matter, or its shape.
        loss: of the output and the labels: the mean over samples, as a tensor of one element.
        uncut: there is one stage, so that a module that is no sequence will do, as one layer.

    Attributes:
        layers, shapes, output_shape, dtype: as of a model; shapes are those of a sample in front of each layer.
        gives: PyTorch's dtype of what goes from layer to layer.
        sample: as given, or of the shape that was given.
        first_names: for each parameter's names in the whole, the first one of the same parameter.

    Raises:
        UsageError: the module cannot be cut like that.
    """

    def __init__(
        self, module: torch.nn.Module, sample: "torch.Tensor | Sequence[int]", loss: LossOf, uncut: bool = False
    ) -> None:
        sequence = isinstance(module, torch.nn.Sequential)
        if not isinstance(module, torch.nn.Module) or not (len(module) if sequence else uncut):
            raise UsageError(f"expected a torch.nn.Sequential with layers, got {type(module).__name__}")
        if not callable(loss):
            raise UsageError(f"expected a loss that can be called with (output, labels), got {type(loss).__name__}")
        layers = module.named_children() if sequence else [("", module)]
        self.layers = tuple(NamedLayer(type(each).__name__, key, each) for key, each in layers)
        if sequence and len(self.layers) < len(module):
            raise UsageError("expected each layer once in the Sequential, got one in several places: make copies")
        dtype = _dtype(module)
        self.dtype = np.dtype(np.float64 if dtype == torch.float64 else np.float32)
        self.gives = dtype
        self._loss, self.sample = loss, _sample_of(sample, dtype)
        firsts: dict[int, str] = {}
        named = list(module.named_parameters(remove_duplicate=False))
        self.first_names = {name: firsts.setdefault(id(p), name) for name, p in named}
        self._places = {
            f"{name}.{key}": place
            for name, part in module.named_modules()
            if isinstance(part, CutWeights)
            for key, place in part.places().items()
        }
        self.shapes, self.output_shape = self._tried(self.sample)

    def cut(self, start: int, stop: int) -> TorchStage:
        """Returns the layers from `start` up to `stop`, without touching them."""
        made = TorchTail if stop == len(self.layers) else TorchStage
        shape = self.output_shape if stop == len(self.layers) else self.shapes[stop]
        shapes, tied = self._named(start, stop, lambda name, p: tuple(p.shape) if p.requires_grad else None)
        names = {name: self.first_names[name] for name in shapes}
        parts = {name: place for name, place in self._places.items() if name in shapes}
        modules = [layer.module for layer in self.layers[start:stop]]
        wide = self.sample.dtype if start == 0 else None
        stage = made(modules, start, Layout(shapes.items(), parts=parts, tied=tied), names, self.dtype, shape, wide)
        if isinstance(stage, TorchTail):
            stage.loss_of = self._loss
        return stage

    def segments(self, start: int, stop: int, wish: str, samples: int, alive: int) -> Segments:
        """Which layers of a stage are computed twice, by their numbers in it; see `computed_twice.segments`.

        Args:
            start: as `cut`.
            stop: as `cut`.
            wish: as of `--recompute`.
            samples: of a microbatch.
            alive: microbatches of the stage that are between their passes at once.

        Raises:
            UsageError: bytes that are too few.
        """
        kind = self.sample.dtype if start == 0 else self.gives
        x = torch.empty((samples, *self.shapes[start]), dtype=kind, device="meta")
        x.requires_grad_(start > 0 and kind.is_floating_point)
        return computed_twice.segments([layer.module for layer in self.layers[start:stop]], x, wish, alive)

    def layout(self) -> Layout:
        """Where the whole's trained parameters would lie, of those cut by tensor too; no rank needs such a vector."""

        def shape(name: str, p: torch.Tensor) -> Shape | None:
            if name in self._places:
                return self._places[name][0]
            return tuple(p.shape) if p.requires_grad else None

        shapes, tied = self._named(0, len(self.layers), shape)
        return Layout(shapes.items(), tied=tied)

    def _named(
        self, start: int, stop: int, shape_of: Callable[[str, torch.Tensor], Shape | None]
    ) -> tuple[dict[str, Shape], dict[str, str]]:
        """Shapes of the parameters of some layers that have one, and other names of these."""
        shapes: dict[str, Shape] = {}
        tied: dict[str, str] = {}
        seen: dict[str, str] = {}
        for layer in self.layers[start:stop]:
            for key, p in layer.module.named_parameters(remove_duplicate=False):
                name = layer.named(key)
                shape = shape_of(name, p)
                if shape is None:
                    continue
                first = seen.setdefault(self.first_names[name], name)
                if first == name:
                    shapes[name] = shape
                else:
                    tied[name] = first
        return shapes, tied

    def _tried(self, sample: torch.Tensor) -> tuple[tuple[Shape, ...], Shape]:
        """The shape of a sample in front of each layer, and behind the last one."""
        x = torch.empty((_TRIAL, *sample.shape), dtype=sample.dtype, device="meta")
        shapes: list[Shape] = []
        for layer in self.layers:
            shapes.append(tuple(x.shape[1:]))
            try:
                x = _on_meta(layer.module, x)
            except Exception as error:
                text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                raise UsageError(
                    f"layer {layer.key} ({layer.name}): the trial on the meta device, with samples of shape "
                    f"{shapes[-1]}, failed: {text}"
                ) from error
            if not isinstance(x, torch.Tensor) or x.ndim < 1 or x.shape[0] != _TRIAL:
                got = f"shape {tuple(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__
                raise UsageError(
                    f"layer {layer.key} ({layer.name}): expected one tensor of {_TRIAL} samples from {_TRIAL} samples, "
                    f"the first axis, got {got}"
                )
        return tuple(shapes), tuple(x.shape[1:])


def _sample_of(sample: "torch.Tensor | Sequence[int]", dtype: Any) -> torch.Tensor:
    """A sample as given, or one of a shape, in the module's dtype.

    Raises:
        UsageError: neither a tensor nor a shape.
    """
    if isinstance(sample, torch.Tensor):
        return sample
    if not isinstance(sample, Sequence) or not all(type(extent) is int and extent > 0 for extent in sample):
        raise UsageError(f"sample: expected a tensor, or the shape of one as integers of at least 1, got {sample!r}")
    return torch.empty(tuple(sample), dtype=dtype, device="meta")


def _on_meta(layer: torch.nn.Module, x: torch.Tensor) -> Any:
    """What a layer gives, with stand-ins for its tensors, so that nothing of it changes."""
    state = {name: torch.empty_like(p, device="meta") for name, p in layer.named_parameters()}
    state |= {name: torch.empty_like(b, device="meta") for name, b in layer.named_buffers()}
    with torch.no_grad():
        return functional_call(layer, state, (x,))


def _dtype(module: torch.nn.Module) -> torch.dtype:
    """The one dtype of parameters and of what goes from stage to stage."""
    for name, p in module.named_parameters():
        if torch.nn.parameter.is_lazy(p):
            raise UsageError(f"{name}: expected a shape, got a lazy parameter: call the module on one batch first")
    found = {p.dtype for p in module.parameters() if p.is_floating_point()}
    if found not in ({torch.float32}, {torch.float64}):
        got = ", ".join(sorted(map(str, found))) or "no parameters"
        raise UsageError(f"expected parameters that are all float32, or all float64, got {got}")
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.device.type not in ("cpu", "meta"):
            raise UsageError(f"{name}: expected a module on the CPU or the meta device, got {tensor.device}")
    return found.pop()  # type: ignore[no-any-return]
