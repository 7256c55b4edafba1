"""Which runs can keep each shard on two servers (`psgd.server.replicas`)."""

from collections.abc import Mapping
from typing import Any

from psgd.kernels.errors import UsageError
from psgd.strategies import going_on

_MOST = 62  # a header says in one number who is dead


def check(values: Mapping[str, Any], servers: int, workers: int) -> None:
    """Refuses `--replicas` where a run does not go on without a server.

    Args:
        values: the options of `psgd train` by name, as `psgd.config.TrainConfig.flat` has them.
        servers: how many there are.
        workers: how many there are.

    Raises:
        UsageError: what was expected, and how to fix it.
    """
    if not values["replicas"]:
        return
    if not 2 <= servers <= _MOST:
        raise UsageError(f"--replicas 1: expected 2 to {_MOST} servers, got {servers}: add --servers 2")
    if (values["spares"] or values["grow"]) and values["strategy"] != "sync":
        raise UsageError(
            f"--replicas 1: with --spares or --grow expected --strategy sync, whose workers end an epoch at one step, "
            f"got {values['strategy']}"
        )
    if not going_on.survives(values, servers, workers):
        raise UsageError(going_on.without("--replicas 1", values, servers, workers))
