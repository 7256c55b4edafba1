"""How a run is cut down to the ranks that live, and which of its workers train when."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from psgd.config import TrainConfig
from psgd.runtime.ulfm.options import last_epoch, part, phases


def can_restart(config: TrainConfig) -> bool:
    """Whether a run of these options can be begun again in its job, where its MPI survives deaths.

    Kernels on GPUs that wait for dead ranks could not be ended, and a trace is of one attempt.
    """
    on_host = "cuda" not in (config.device, config.server_device)
    return config.checkpoint_dir is not None and on_host and config.trace is None


def acting(config: TrainConfig) -> int:
    """How many ranks the run has. Servers and workers are known by now."""
    assert config.workers is not None and config.servers is not None
    return config.parts * (config.workers + config.servers)


def fitted(config: TrainConfig, living: int) -> TrainConfig | None:
    """The run with as many workers as so many ranks can be, at most those that it has; None where that is none.

    A record of another number of workers cannot be continued; what one rank alone does is another run. One worker's
    servers are not held twice.
    """
    if acting(config) <= living:
        return config
    assert config.workers is not None and config.servers is not None
    workers = living // config.parts - config.servers
    if workers < 1 + bool(config.replicas) or config.record is not None or config.replay is not None:
        return None
    if workers + config.servers == 1 and config.parts == 1:
        return None
    return replace(config, workers=workers, inject=without_deaths(config.inject))


def acts(config: TrainConfig, living: int) -> int:
    """How many ranks the run has when so many live; 0 where it cannot go on."""
    found = fitted(config, living)
    return 0 if found is None else acting(found)


def left(config: TrainConfig, result: Mapping[str, Any]) -> bool:
    """Whether a run that saved and stopped, which no user has asked for, did so for more workers to join."""
    more_to_do = result["samples"] < config.epochs * result["train_samples"]
    return bool(result["requeue"] and (config.grow or config.spares)) and more_to_do


def has_ended(config: TrainConfig, result: Mapping[str, Any]) -> bool:
    """Whether the present part of a run that grows is over: where workers do not keep pace, about so."""
    assert config.workers is not None
    last = last_epoch(config.grow, config.workers, config.epochs)
    return bool(last) and result["samples"] >= (last - 0.5) * result["train_samples"]


def after_leaving(config: TrainConfig, ended: bool, living: int) -> TrainConfig:
    """The run that goes on where one has left, with as many workers as before, or where its part has ended with more.

    Args:
        config: of the run that has left.
        ended: its part of a run that grows is over.
        living: ranks of the job.
    """
    found = grown(config, living) if ended else fitted(config, living) or config
    return replace(found, resume=True, spares=max(0, living - acting(found)))


def grown(config: TrainConfig, living: int) -> TrainConfig:
    """The run with the workers of its next part, or as many as live; where these are no more, it grows no more."""
    assert config.workers is not None and config.grow is not None
    share, found = part(config.grow, config.workers).until, phases(config.grow)
    workers = next((phase.workers for phase in found if share < phase.until), found[-1].workers)
    wanted = fitted(replace(config, workers=workers, inject=without_deaths(config.inject)), living)
    if wanted is None or wanted.workers is None or wanted.workers <= config.workers:
        return replace(config, grow=None)
    return wanted


def without_deaths(inject: str) -> str:
    """Injected faults without those that have happened, or have lost the rank that they are for."""
    parts = [part.strip() for part in inject.split(",")]
    return ",".join(part for part in parts if not re.match(r"(kill|stop|raise|nan):", part) and part)
