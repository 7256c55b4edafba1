"""Runs of PyTorch's modules, sharded and not, for comparison bit by bit."""

import random
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

import psgd
from psgd.optim.optimizer import Optimizer

CLASSES = 5


class Residual(nn.Module):
    """Two convolutions with BatchNorm, added to the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(x + self.norms[1](self.second(y)))


class ResNet(nn.Module):
    """Blocks in a Sequential, and a frozen scale."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 3, 3, padding=1)
        self.blocks = nn.Sequential(Residual(3), Residual(3))
        self.scale = nn.Parameter(torch.full((3,), 0.5), requires_grad=False)
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)) * self.scale)


class Encoder(nn.Module):
    """A transformer's encoder whose head has the embedding's weight, and whose first layer runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.place = nn.Parameter(torch.randn(6, 8) * 0.1)
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.unused = nn.Linear(3, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.layers.layers[0](self.layers(self.embed(tokens) + self.place))
        return self.head(self.norm(x)).transpose(1, 2)


def mlp() -> nn.Module:
    """Layers of odd sizes."""
    return nn.Sequential(nn.Linear(7, 15), nn.ReLU(), nn.Linear(15, 17), nn.Tanh(), nn.Linear(17, CLASSES))


KINDS = {"mlp": mlp, "resnet": ResNet, "encoder": Encoder}


def made(kind: str, seed: int = 0) -> nn.Module:
    """Equal seeds give equal modules."""
    torch.manual_seed(seed)
    return KINDS[kind]()


def loss_of(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Of tokens too, as of so many samples: elsewhere a GPU adds in an order of its own."""
    return nn.functional.cross_entropy(scores.movedim(1, -1).flatten(0, -2), y.flatten())


def values(part: nn.Module) -> None:
    """First values of a part, as with `module.apply`."""
    for p in part.parameters(recurse=False):
        nn.init.normal_(p, std=0.1)
    if isinstance(part, nn.BatchNorm1d):
        part.reset_running_stats()


def batch(kind: str, rank: int, step: int, empty: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Each rank's own; with `empty` some steps are without samples for some ranks."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    n = (4, 2, 3, 0, 4, 6)[(rank + step) % 6] if empty else (4, 2, 3, 5)[(rank + step) % 4]
    if kind == "encoder":
        tokens = torch.randint(0, 11, (n, 6), generator=generator)
        return tokens, tokens.roll(1, 1)
    shape = (n, 7) if kind == "mlp" else (n, 1, 6, 6)
    return torch.randn(shape, generator=generator), torch.randint(0, CLASSES, (n,), generator=generator)


@dataclass
class Ran:
    """What a run ended with: losses, the whole final state on all ranks, bytes by step, and the model."""

    losses: list[float]
    state: dict[str, torch.Tensor]
    nbytes: list[int]
    model: Any


def run(
    comm: MPI.Intracomm,
    kind: str,
    stage: int,
    steps: int,
    uneven: int = 0,
    empty: bool = False,
    first: int = 0,
    module: nn.Module | None = None,
    sharding: dict[str, Any] | None = None,
    device: Any = "cpu",
    **options: Any,
) -> Ran:
    """Trains with Adam, unsharded where the stage is 0, with random delays. Collective.

    Args:
        comm: all ranks.
        kind: of module.
        stage: 0 to 3.
        steps: of the first rank; each has `uneven` more than the one before.
        uneven: see `steps`.
        empty: some ranks have no samples in some steps.
        first: step at which it begins; 0: behind those of the checkpoint that it resumes.
        module: to be trained; None makes one of the kind, another on each rank.
        sharding: options of `psgd.torch.shard`.
        device: where it is trained.
        **options: of `psgd.connect`.
    """
    torch.set_num_threads(1)
    module = (module or made(kind, comm.rank)).to(device)
    chance = random.Random(comm.rank * 7 + stage)
    model: Any = psgd.torch.shard(module, comm, stage=stage, **sharding or {}) if stage else psgd.torch.wrap(module)
    losses, nbytes = [], []
    with psgd.connect(comm, model, strategy="allreduce", **({"rule": "adam", "lr": 0.01} | options)) as ps:
        for step in range(first or ps.clock, steps + uneven * comm.rank):
            x, y = (each.to(device) for each in batch(kind, comm.rank, step, empty))
            if chance.random() < 0.1:
                time.sleep(chance.random() * 0.004)
            if not len(x):
                ps.step(0)
                continue
            module.zero_grad()
            ps.overlap(len(x))
            loss = loss_of(module(x), y)
            loss.backward()
            ps.step(len(x), loss.item())
            losses.append(loss.item())
            nbytes.append(getattr(ps._client, "nbytes", 0))
    state = model.state_dict(None) if stage else {n: t.cpu().clone() for n, t in module.state_dict().items()}
    return Ran(losses, state, nbytes, model)


def step_by_step(
    module: nn.Module, batches: list[list[tuple[torch.Tensor, torch.Tensor]]], accumulate: int, loss: Any, options: Any
) -> dict[str, torch.Tensor]:
    """The final state of one process that has all ranks' batches, and adds each step's gradients by themselves.

    Args:
        module: with the first values.
        batches: of each rank by step, as many of all.
        accumulate: steps of an update.
        loss: of output and labels.
        options: `psgd.optim.optimizer.OptimizerOptions`.
    """
    wrapped = psgd.torch.wrap(module)
    optimizer, applied = Optimizer(wrapped.params, options), 0
    for first in range(0, len(batches[0]), accumulate):
        total, samples = np.zeros_like(wrapped.params), 0
        for step in range(first, min(first + accumulate, len(batches[0]))):
            of_step = np.zeros_like(total)
            for x, y in (each[step] for each in batches):
                if len(x):
                    wrapped.zero_grad()
                    loss(module(x), y).backward()
                    of_step += np.float32(len(x)) * wrapped.grads
                    samples += len(x)
            total += of_step
        optimizer.take(total, 1 / samples, applied)
        applied += samples
    return module.state_dict()


def same_state(got: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    """Checks names, their order and all bits."""
    assert list(got) == list(wanted)
    for name, value in wanted.items():
        assert torch.equal(got[name], value), name
