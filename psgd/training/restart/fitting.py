"""How a run is cut down to the ranks that live, and which of its workers train when."""

import re
from dataclasses import replace

from psgd.config import TrainConfig
from psgd.runtime.ulfm.options import phases


def can_restart(config: TrainConfig) -> bool:
    """Whether a run of these options can be begun again in its job, where its MPI survives deaths.

    Kernels on GPUs that wait for dead ranks could not be ended.
    """
    return config.checkpoint_dir is not None and "cuda" not in (config.device, config.server_device)


def acting(config: TrainConfig) -> int:
    """How many ranks the run has. Servers and workers are known by now."""
    assert config.workers is not None and config.servers is not None
    return config.parts * (config.workers + config.servers)


def standing_by(config: TrainConfig) -> int:
    """How many idle ranks are to be started beside those of the run's first part."""
    workers = [phase.workers for phase in phases(config.grow)] or [0]
    return config.spares + config.parts * (workers[-1] - workers[0])


def fitted(config: TrainConfig, living: int) -> TrainConfig | None:
    """The run with as many workers as so many ranks can be, at most those that it has; None where that is none.

    A record of another number of workers cannot be continued; what one rank alone does is another run.
    """
    if acting(config) <= living:
        return config
    assert config.workers is not None and config.servers is not None
    workers = living // config.parts - config.servers
    if workers < 1 or config.record is not None or config.replay is not None:
        return None
    if workers + config.servers == 1 and config.parts == 1:
        return None
    return replace(config, workers=workers, inject=without_deaths(config.inject))


def acts(config: TrainConfig, living: int) -> int:
    """How many ranks the run has when so many live; 0 where it cannot go on."""
    found = fitted(config, living)
    return 0 if found is None else acting(found)


def grown(config: TrainConfig, share: float, living: int) -> TrainConfig:
    """The run with the workers of the part that follows when `share` of the epochs is done, or as many as live."""
    found = phases(config.grow)
    workers = next((phase.workers for phase in found if share < phase.until), found[-1].workers)
    wanted = replace(config, workers=workers, inject=without_deaths(config.inject))
    return fitted(wanted, living) or config


def without_deaths(inject: str) -> str:
    """Injected faults without those that have happened, or have lost the rank that they are for."""
    parts = [part.strip() for part in inject.split(",")]
    return ",".join(part for part in parts if not re.match(r"(kill|stop|raise|nan):", part) and part)
