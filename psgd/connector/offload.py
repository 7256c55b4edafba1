"""`psgd.connect(offload=...)`: checks, and who takes the steps."""

from collections.abc import Mapping
from typing import Any

from psgd.kernels.errors import AgreedUsageError, UsageError
from psgd.optim.host_updates import HostUpdates
from psgd.strategies import catalog as strategies
from psgd.worker.context import Alone


def updates(strategy: str, own: Mapping[str, Any], servers: int, workers: int, late: int) -> HostUpdates | None:
    """Returns the threads that take a lone worker's steps by parts, its vectors being on the host already.

    Args:
        strategy: its name.
        own: its own options.
        servers: how many ranks are.
        workers: how many ranks are.
        late: how many steps gradients are to be behind.

    Returns:
        None where the strategy takes the steps.

    Raises:
        AgreedUsageError: they are to be late, and the strategy takes them; on all ranks.
    """
    if servers == 0 and workers == 1 and not isinstance(strategies.create(strategy, 1, **own), Alone):
        return HostUpdates(pinned=True)
    if late:
        raise AgreedUsageError(
            f"--offload-staleness {late}: expected a single worker without servers (--workers 1 --servers 0), whose "
            f"steps are its own, got {workers} workers, {servers} servers, strategy {strategy}"
        )
    return None


def check(given: Mapping[str, Any], on_device: bool, servers: int, alone: bool) -> HostUpdates | None:
    """Returns the threads that take a single rank's steps; None where the strategy takes them, on the host.

    Args:
        given: the arguments of `psgd.connect` by name.
        on_device: the parameters are on a GPU.
        servers: how many ranks are.
        alone: a single rank takes plain steps.

    Raises:
        UsageError: another wish, or one that has nothing to do.
    """
    wish = given["offload"]
    if wish is None or isinstance(wish, HostUpdates):
        return wish if alone else None
    if wish != "optimizer":
        raise UsageError(f'offload: expected "optimizer" or None, got {wish!r}')
    if given["shard"]:
        raise UsageError("offload: not with shard, whose workers keep parts of the state on GPUs; omit one")
    if servers:
        raise UsageError("offload: the optimizer is on the servers, which are on hosts; omit it")
    if not on_device:
        raise UsageError("offload: expected parameters on a GPU with it, got NumPy's: their optimizer is on the host")
    return HostUpdates(pinned=True) if alone else None
