"""Which runs go on without a worker that dies. All others end, as without ULFM, and resume from a checkpoint."""

from psgd.config import TrainConfig
from psgd.nn.catalog import MODELS
from psgd.strategies import catalog as strategies


def survives(config: TrainConfig, servers: int, workers: int) -> bool:
    """Whether a run with these options would go on, where the MPI does.

    What a checkpoint, a record, a trace or a codec keeps by worker is not regrouped, nor are models in pieces.
    """
    strategy = strategies.find(config.strategy)
    plain = not (config.record or config.replay or config.trace or config.checkpoint_dir or config.mesh)
    whole = config.compress in (None, "none") and config.own.get("accumulate") in (None, 1)
    on_host = "cuda" not in (config.device, config.server_device)
    return (
        strategy.survives
        and servers == int(strategy.servers)
        and workers > 1
        and plain
        and whole
        and on_host
        and config.model in MODELS
    )
