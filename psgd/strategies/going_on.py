"""Which runs go on without a worker that dies. All others end, as without ULFM, and resume from a checkpoint."""

from collections.abc import Mapping
from typing import Any

from psgd.strategies import catalog

WITHOUT = (
    "expected a run that goes on without dead workers (docs/failures.md#dead-workers), started by psgd train or by "
    "mpirun --with-ft ulfm"
)
"""What is said of an option that needs one."""
_MEET_AT_EPOCHS = ("sync", "allreduce")
"""All workers end an epoch at one step: spares join there. With the others they take a dead worker's place at once."""
_PER_WORKER = ("record", "replay", "trace", "mesh", "shard")


def survives(values: Mapping[str, Any], servers: int, workers: int) -> bool:
    """Whether a run with these options would go on, where the MPI does.

    What a checkpoint, a record, a trace, a codec or sharding keeps by worker is not regrouped, nor are models in pieces
    or of a file of the user.

    Args:
        values: the options of `psgd train` by name, as `psgd.config.TrainConfig.flat` has them.
        servers: how many there are.
        workers: how many there are.
    """
    if not values["survive"]:
        return False
    strategy = catalog.find(values["strategy"])
    whole = values["compress"] in (None, "none") or values["strategy"] == "decentralized"
    steps = values["accumulate"] in (None, 1)
    in_turn = values["easgd_order"] == "round-robin"  # whose checkpoints are made by one worker after the other
    saves = values["checkpoint_dir"] is None or not (values["replicas"] or in_turn)
    refilled = not (values["spares"] or values["grow"]) or values["strategy"] in _MEET_AT_EPOCHS
    on_host = "cuda" not in (values["device"], values["server_device"]) and ":" not in values["model"]
    plain = whole and steps and saves and refilled and on_host
    plain = plain and not any(values[name] for name in _PER_WORKER)
    return strategy.survives and bool(servers) == strategy.servers and workers > 1 and plain
