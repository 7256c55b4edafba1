"""For tests with PyTorch: modules of every kind, their batches, and gradients by autograd on tensors of their own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from psgd.nn.layout import Layout

Vector = NDArray[Any]
KINDS = ("plain", "tied", "frozen", "batchnorm", "unused")


def module_of(kind: str, seed: int = 0) -> nn.Sequential:
    """A small module; equal seeds give equal modules."""
    torch.manual_seed(seed)
    parts: list[nn.Module] = [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)]
    if kind == "batchnorm":
        parts.insert(1, nn.BatchNorm1d(4))
    module = nn.Sequential(*parts)
    if kind == "tied":
        module[2].weight = module[0].weight
    elif kind == "frozen":
        module[0].weight.requires_grad_(False)
    elif kind == "unused":
        module.append(nn.Linear(4, 3))
    return module


def batch(worker: int, clock: int) -> tuple[torch.Tensor, torch.Tensor]:
    """That worker's at its step of that number."""
    generator = torch.Generator().manual_seed(100 * worker + clock)
    return torch.randn(6, 4, generator=generator), torch.randn(6, 4, generator=generator)


def loss_of(kind: str, module: nn.Sequential, worker: int, clock: int) -> torch.Tensor:
    """Its loss there."""
    x, y = batch(worker, clock)
    return nn.functional.mse_loss((module[:3] if kind == "unused" else module)(x), y)


def put(module: nn.Module, layout: Layout, vector: Vector) -> None:
    """Gives the module the parameters of a vector."""
    views = layout.views(vector)
    names = {p.name for p in layout.parameters}
    with torch.no_grad():
        for name, p in module.named_parameters():
            if name in names:
                p.copy_(torch.from_numpy(views[name].copy()))


def gradient_for(kind: str, layout: Layout, first: int) -> Callable[[Vector, int, int], Vector]:
    """The gradient of one worker's step; `first` is the seed of the first worker's module."""

    def gradient(w: Vector, worker: int, clock: int) -> Vector:
        module = module_of(kind, first)  # frozen parameters are the first worker's everywhere
        put(module, layout, w)
        loss_of(kind, module, worker, clock).backward()
        result = np.zeros_like(w)
        into = layout.views(result)
        for name, p in module.named_parameters():
            if p.requires_grad and p.grad is not None:
                into[name][...] = p.grad.numpy()
        return result

    return gradient


class TorchRule:
    """One optimizer of `torch.optim` with its scheduler, on a module of its own, as a `simulation.Rule`.

    Args:
        module: with the names of the layout.
        layout: of the vectors.
        optimizer: of the module's parameters.
        scheduler: of the optimizer, or None.

    Attributes:
        taken: steps.
    """

    def __init__(self, module: nn.Module, layout: Layout, optimizer: Any, scheduler: Any = None) -> None:
        self.module, self.layout, self.optimizer, self.scheduler = module, layout, optimizer, scheduler
        self.taken = 0
        self._named = {p.name: dict(module.named_parameters())[p.name] for p in layout.parameters}

    def step(self, w: Vector, grad: Vector, lr: float, scale: float = 1.0, clip: float = 0.0) -> None:
        """Changes `w` along `scale * grad`; the rate is the optimizer's own."""
        put(self.module, self.layout, w)
        views = self.layout.views(w.dtype.type(scale) * grad)
        for name, p in self._named.items():
            p.grad = torch.from_numpy(views[name].copy())
            if "step" in self.optimizer.state.get(p, {}):
                self.optimizer.state[p]["step"].fill_(self.taken)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.taken += 1
        into = self.layout.views(w)
        for name, p in self._named.items():
            into[name][...] = p.detach().numpy()

    @property
    def state(self) -> list[Vector]:
        """The optimizer's arrays, each as a vector."""
        return [self._vector(key) for key in self._keys()]

    @state.setter
    def state(self, vectors: list[Vector]) -> None:
        for key, vector in zip(self._keys(), vectors, strict=True):
            views = self.layout.views(vector)
            for name, p in self._named.items():
                self.optimizer.state[p][key].copy_(torch.from_numpy(views[name].copy()))

    def _keys(self) -> list[str]:
        return sorted({key for state in self.optimizer.state.values() for key in state} - {"step"})

    def _vector(self, key: str) -> Vector:
        result = np.zeros(self.layout.size, np.float32)
        into = self.layout.views(result)
        for name, p in self._named.items():
            into[name][...] = self.optimizer.state[p][key].numpy()
        return result
