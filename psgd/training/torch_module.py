"""A PyTorch module that a user's function made, as what a run trains."""

from pathlib import Path
from typing import Any

import torch

from psgd.backend.interface import Backend
from psgd.checkpoint import export
from psgd.config import TrainConfig
from psgd.data import Dataset
from psgd.data.normalization import Statistics
from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.nn.layout import Layout
from psgd.runtime.rng import generator
from psgd.torch import wrap
from psgd.torch.wrapped import Wrapped
from psgd.training.torch_backend import LossOf, TorchBackend, evaluating, input_dtype, place_of, untouched

_TRIAL = 2
"""Samples of the batch on which the module is tried."""


def cross_entropy(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The default loss; of scores in few bits in float32, as autocast does."""
    wide = output if output.dtype == torch.float64 else output.float()
    return torch.nn.functional.cross_entropy(wide, labels)


def seed_step(device: torch.device, seed: int, worker: int, epoch: int, step: int) -> None:
    """What PyTorch draws on a device from here on depends on these numbers alone."""
    drawn = int(generator(seed, "step", worker, epoch, step).integers(2**63))
    torch.default_generator.manual_seed(drawn)  # torch.manual_seed looks at all devices each time
    if device.type != "cpu":
        torch.cuda.default_generators[device.index].manual_seed(drawn)


class TorchModel:
    """Implements `psgd.training.trainable.Trainable`.

    Args:
        module: the user's, wrapped already or not.
        loss: a function of output and labels, or None: cross-entropy.
        shape: of one sample.

    Attributes:
        module, shape: as given.
        layout: of its trainable parameters.
        loss: of output and labels.

    Raises:
        UsageError: something in the module cannot be trained, or the loss cannot be called.
    """

    def __init__(self, module: "torch.nn.Module | Wrapped", loss: LossOf | None, shape: tuple[int, ...] = ()) -> None:
        self.loss, self.shape = _checked(loss), shape
        if not isinstance(module, Wrapped):
            _settle(module, shape)
        self.wrapped = module if isinstance(module, Wrapped) else wrap(module)
        self.module, self.layout = self.wrapped.module, self.wrapped.layout

    def vector(self, config: TrainConfig, serves: bool) -> Array:
        if config.device == "cuda" and not serves and self.wrapped.device.type == "cpu":
            self.wrapped.to("cuda")
        return self.wrapped.params

    def connected(self, vector: Array) -> Any:
        return self.wrapped

    def backend(self, config: TrainConfig, dataset: Dataset, statistics: Statistics) -> Backend:
        batch_size = min(config.batch_size, dataset.train.samples)
        if self.wrapped.device.type != "cpu":
            from psgd.training.torch_cuda_backend import TorchCudaBackend

            keep = None if config.data_device == "auto" else config.data_device == "cuda"
            return TorchCudaBackend(self.wrapped, self.loss, dataset, statistics, batch_size, keep)
        return TorchBackend(self.wrapped, self.loss, dataset, statistics, batch_size)

    def begin(self, seed: int, worker: int, epoch: int, step: int) -> None:
        """Dropout and the like draw from here on as they would in any run at this place."""
        seed_step(self.wrapped.device, seed, worker, epoch, step)

    def agreed(self, stop: bool) -> bool:
        return stop

    def save(self, path: Path, vector: Array) -> None:
        """The module's whole state_dict: buffers and frozen parameters too."""
        state = {name: tensor.detach().cpu() for name, tensor in self.wrapped.module.state_dict().items()}
        export.write_named(path, state, "--save")

    def check(self, shape: tuple[int, ...], classes: int) -> None:
        """Tries the module and its loss on a small batch of zeros; both are as before then.

        Raises:
            UsageError: the output is not one score for each class, or the loss not one number.
        """
        module = self.module
        with untouched(module):
            place = place_of(module)
            x = torch.zeros((_TRIAL, *shape), dtype=input_dtype(module), device=place)
            output = module(x)
            found = tuple(output.shape) if isinstance(output, torch.Tensor) else ()
            if len(found) != 2 or found[0] != _TRIAL or found[1] < classes:
                got = found if isinstance(output, torch.Tensor) else type(output).__name__
                raise UsageError(
                    f"expected a module that gives scores of shape (n, {classes}), one for each class; for samples of "
                    f"shape ({_TRIAL}, {', '.join(map(str, shape))}) it gave {got}"
                )
            loss = self.loss(output, torch.zeros(_TRIAL, dtype=torch.int64, device=place))
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
                what = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
                raise UsageError(
                    f"expected a loss that gives one number to differentiate, the batch's mean; got {what}"
                )

    def needs_several(self) -> str | None:
        """Which layer, if any, normalizes over a batch and so cannot be trained on one sample; all is as before then.

        One that has several values of a sample for each channel can.
        """
        found: list[str] = []

        def note(part: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            if inputs[0].numel() == inputs[0].shape[1]:
                found.append(f"layer {names[part]} ({type(part).__name__})")

        names = {
            part: name
            for name, part in self.module.named_modules()
            if isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and (part.training or part.running_mean is None)
        }
        hooks = [part.register_forward_pre_hook(note) for part in names]
        try:
            if names:
                with untouched(self.module), torch.no_grad():
                    kind, place = input_dtype(self.module), place_of(self.module)
                    self.module(torch.zeros((1, *self.shape), dtype=kind, device=place))
        finally:
            for hook in hooks:
                hook.remove()
        return found[0] if found else None


class UncutModule(TorchModel):
    """A module that is about to be cut or shared out: nothing of it is in a vector yet, perhaps nothing in memory.

    Args:
        module: the user's.
        loss: as `TorchModel`.
        shape: of one sample.

    Attributes:
        shape: as given.

    Raises:
        UsageError: as `TorchModel`.
    """

    def __init__(self, module: "torch.nn.Module | Wrapped", loss: LossOf | None, shape: tuple[int, ...] = ()) -> None:
        if isinstance(module, Wrapped):
            raise UsageError(
                "expected a module for --mesh or --shard that is not wrapped, since each rank takes its part of it"
            )
        self.module, self.loss, self.shape = module, _checked(loss), shape
        _settle(module, shape)
        self.layout = Layout([(name, tuple(p.shape)) for name, p in module.named_parameters() if p.requires_grad])


def _checked(loss: LossOf | None) -> LossOf:
    if loss is not None and not callable(loss):
        raise UsageError(f"expected a loss that can be called with (output, labels), got {type(loss).__name__}")
    return cross_entropy if loss is None else loss


def _settle(module: torch.nn.Module, shape: tuple[int, ...]) -> None:
    """Lets lazy layers find their shapes."""
    if any(map(torch.nn.parameter.is_lazy, module.parameters())):
        with evaluating(module), torch.no_grad():
            module(torch.zeros((_TRIAL, *shape), device=place_of(module)))
