"""A run's estimate from its options and its data, whatever it trains; and what would make it fit."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psgd.config import TrainConfig
from psgd.estimate import activations
from psgd.estimate.pieces import of_mesh
from psgd.estimate.rank_memory import Estimate, of_run
from psgd.estimate.table import text
from psgd.estimate.verdict import verdict
from psgd.kernels.errors import UsageError
from psgd.nn.evaluation import evaluated_at_once
from psgd.nn.model import Model
from psgd.parallel.cuts.decision import Decision
from psgd.strategies import on_shards

_WISHES: tuple[dict[str, Any], ...] = (
    {"recompute": "all"},
    {"shard": 3},
    {"recompute": "all", "shard": 3},
    {"offload": "optimizer"},
    {"recompute": "all", "offload": "parameters"},
)
"""What makes a run need less and keeps its bits, from what costs the least time on."""


@dataclass(frozen=True)
class RunMemory:
    """What the ranks of a run need.

    Attributes:
        config: the run.
        ranks: what each kind of them needs, workers first.
        parameters: of the whole model.
        dtype: of them.
        bytes_of: activations of so many samples, where the model is in one piece.
        another: the same with other options; None where nothing is known of them.
    """

    config: TrainConfig
    ranks: Sequence[Estimate]
    parameters: int
    dtype: str
    bytes_of: Callable[[int], int]
    another: "Callable[[TrainConfig], RunMemory] | None" = None

    def verdict(self, available: int, device: str) -> list[str]:
        """Says what does not fit and what would: empty where all does.

        Args:
            available: bytes of a rank on that device.
            device: "cpu" or "cuda".
        """
        there = [each for each in self.ranks if each.device == device]
        if not there or (most := max(there, key=lambda each: each.total)).total <= available:
            return []
        if self.config.parts > 1:
            said = [f"a {most.role} needs {text(most.total)}, {text(available)} are there"]
            said.append("more pieces or microbatches need less")
        else:
            said = verdict(most, available, self.bytes_of, self.config.batch_size)
        if most.role == "server":
            return [*said, "more --servers hold a part of the parameters each"]
        fitting = [_spelled(wish) for wish in _WISHES if self._fits(wish, available, device)]
        return [*said, *([f"the run fits with {' or '.join(fitting)}"] if fitting else [])]

    def _fits(self, wish: dict[str, Any], available: int, device: str) -> bool:
        """Whether the run fits with other options: False where it has them, or they do not go with its own."""
        if self.another is None or any(getattr(self.config, name) is not None for name in wish):
            return False
        other = replace(self.config, **wish)
        if other.offload is not None and (other.device != "cuda" or other.mesh or other.shard):
            return False
        try:
            on_shards.check(other.strategy, vars(other), other.axes)
            found = self.another(other)
        except UsageError:
            return False
        return all(each.total <= available for each in found.ranks if each.device == device)


def of_model(config: TrainConfig, model: Model, servers: int, workers: int, timed: bool = True) -> RunMemory:
    """Estimates a run. Opens and allocates nothing.

    Args:
        config: the run.
        model: its whole model, on no vector.
        servers: how many there are.
        workers: how many there are.
        timed: layers are, where the run will do so for its cuts; else they are taken to be alike.

    Raises:
        UsageError: a model that cannot be.
    """
    if not timed:
        wish = Decision(config.axes.get("pipe", 1), config.batch_size, name=config.pipe_schedule, cut=config.cut)
        config = replace(config, cut=",".join(map(str, wish.even(len(model.layers)))) or config.cut)
    mine = model
    if config.parts > 1:
        found = of_mesh(config, model, servers, workers)
    else:
        mine = activations.recomputed(model, config.recompute, config.batch_size, config.device)
        found = of_run(config, mine, servers, workers, evaluated_at_once(model.tokens, config.device))
    return RunMemory(
        config,
        found,
        model.layout.size,
        str(model.dtype),
        functools.partial(activations.count, mine, device=config.device),
        lambda other: of_model(other, model, servers, workers, timed),
    )


def _spelled(wish: dict[str, Any]) -> str:
    return " ".join(f"--{name} {value}" for name, value in wish.items())
