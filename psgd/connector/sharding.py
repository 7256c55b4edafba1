"""What `psgd.connect` makes of `shard`: its checks, and the strategy's workers that keep parts of the state."""

from collections.abc import Mapping
from typing import Any

from psgd.kernels.errors import UsageError
from psgd.strategies.sharded.sharded_worker import ModelExchange, create


def chosen(given: Mapping[str, Any], workers: int) -> Any:
    """The function that makes the workers.

    Args:
        given: the arguments of `psgd.connect` by name.
        workers: how many there are.

    Raises:
        UsageError: the first argument that does not go with it.
    """
    shard = given["shard"]
    if not isinstance(shard, ModelExchange) and (type(shard) is not int or shard != 1):
        raise UsageError(
            f"shard: expected 0 or 1, or the exchange that a model of stage 2 or 3 runs through, got {shard!r}"
        )
    if given["strategy"] != "allreduce":
        raise UsageError(f"shard: expected strategy allreduce with it, got {given['strategy']}")
    if workers < 2:
        raise UsageError("shard: a single worker has nobody to share with: omit it, or start more ranks")
    if given["compress"] not in (None, "none"):
        raise UsageError(f"compress {given['compress']}: not with shard, whose gradients are sent whole; omit it")
    return create(shard)


def whole_size(shard: object, size: int) -> int:
    """Elements of the whole vector, of which `size` are passed."""
    return shard.slices.whole if isinstance(shard, ModelExchange) else size
