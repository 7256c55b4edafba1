"""Which runs go on without a worker that dies. All others end, as without ULFM, and resume from a checkpoint."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from psgd.strategies import catalog

_EXPECTED = (
    "expected a run that goes on without dead workers (docs/failures.md#dead-workers), started by psgd train or by "
    "mpirun --with-ft ulfm"
)
_MEET_AT_EPOCHS = ("sync", "allreduce")
"""All workers end an epoch at one step: spares join there. With the others they take a dead worker's place at once, and
so they do where a step adds gradients of two epochs."""


def meet_at_epochs(strategy: str, accumulate: int | None) -> bool:
    """Whether all workers end an epoch at one step, at which a checkpoint may lie."""
    return strategy in _MEET_AT_EPOCHS and accumulate in (None, 1)


class Asked(NamedTuple):
    """A run, by its options.

    Attributes:
        values: the options of `psgd train` by name, as `psgd.config.TrainConfig.flat` has them.
        servers: how many there are.
        workers: how many there are.
    """

    values: Mapping[str, Any]
    servers: int
    workers: int

    @property
    def strategy(self) -> catalog.Strategy:
        """What is known of its strategy."""
        return catalog.find(self.values["strategy"])

    @property
    def compresses(self) -> bool:
        """Updates are compressed: to be sent again to a server's second holder, they would have to be kept encoded."""
        return self.values["compress"] not in (None, "none")

    @property
    def saves_in_turn(self) -> bool:
        """Checkpoints are made by one worker after the other: a death may come between two of them."""
        return self.values["easgd_order"] == "round-robin" and self.values["checkpoint_dir"] is not None

    @property
    def stands_by(self) -> bool:
        """Ranks stand by that join at any step."""
        waits = self.values["spares"] or self.values["grow"]
        return bool(waits) and not meet_at_epochs(self.values["strategy"], self.values["accumulate"])


ENDS: tuple[tuple[Callable[[Asked], object], str], ...] = (
    (lambda run: not run.values["survive"], "--no-survive"),
    (lambda run: run.workers < 2, "one worker alone"),
    (lambda run: not run.strategy.survives, "--strategy {strategy}"),
    (lambda run: bool(run.servers) != run.strategy.servers, "--servers {servers}"),
    (lambda run: run.saves_in_turn, "--checkpoint-dir with --easgd-order round-robin"),
    (lambda run: run.values["mesh"], "--mesh (a model in pieces)"),
    (lambda run: run.values["shard"], "--shard"),
    (lambda run: run.values["device"] == "cuda", "--device cuda"),
    (lambda run: run.values["server_device"] == "cuda", "--server-device cuda"),
    (lambda run: run.values["record"], "--record (of all workers)"),
    (lambda run: run.values["replay"], "--replay (of all workers)"),
    (lambda run: run.values["replicas"] and run.compresses, "--replicas with --compress"),
    (lambda run: run.stands_by, "--spares or --grow (with {strategy}, the run begins again at a checkpoint)"),
)
"""Why a run ends when a worker dies: what asks for it, and how the user is told."""


def obstacle(values: Mapping[str, Any], servers: int, workers: int) -> str | None:
    """Why a run with these options would end when a worker dies, in a few words; None where it goes on.

    Args:
        values: the options of `psgd train` by name, as `psgd.config.TrainConfig.flat` has them.
        servers: how many there are.
        workers: how many there are.
    """
    run = Asked(values, servers, workers)
    why = next((reason for holds, reason in ENDS if holds(run)), None)
    return None if why is None else why.format_map({**values, "servers": servers})


def survives(values: Mapping[str, Any], servers: int, workers: int) -> bool:
    """Whether a run with these options would go on, where the MPI does; the arguments are those of `obstacle`."""
    return obstacle(values, servers, workers) is None


def without(option: str, values: Mapping[str, Any], servers: int, workers: int) -> str:
    """The message for an option that needs a run that goes on; the other arguments are those of `obstacle`."""
    why = obstacle(values, servers, workers)
    return f"{option}: {_EXPECTED}" + ("" if why is None else f", got {why}")
