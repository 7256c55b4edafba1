"""What all ranks must pass to `psgd.connect` alike, and what a run has in common with one that resumes from it."""

from typing import Any

from psgd.connector import sharding
from psgd.connector.options import CheckedOptions, ConnectOptions, Vector
from psgd.runtime import placement
from psgd.worker.bound_model import BoundModel


def signature(
    given: ConnectOptions, checked: CheckedOptions, vector: Vector, model: BoundModel | None = None
) -> dict[str, Any]:
    """What is compared between ranks, under the arguments' names, as JSON values.

    Raises:
        UsageError: a placement that cannot be.
    """
    optimizer, plan = checked.run.optimizer, checked.plan
    signed = {
        "size": sharding.whole_size(given.shard, vector.size),
        "shard": given.shard if isinstance(given.shard, int) else given.shard.stage,
        "dtype": str(vector.dtype),
        "servers": checked.servers,
        "placement": placement.checked(given.placement, checked.servers, checked.servers + checked.workers),
        "strategy": given.strategy,
        "strategy's options": repr(sorted(given.options.items())),
        "rule": optimizer.rule.name,
        "momentum": repr(given.momentum),
        "weight_decay": repr(given.weight_decay),
        "clip_norm": optimizer.clip_norm,
        "reduction": given.reduction,
        "segment_bytes": given.segment_bytes if given.shard else checked.run.segment * vector.itemsize,
        "lr": [float(optimizer.schedule(samples)) for samples in (0, 1e3, 1e6)],
        "staleness_lr": given.staleness_lr,
        "on_nan": given.on_nan,
        "compress": repr(checked.run.compression),
        "workers": checked.workers,
        "replay": given.replay is not None,
        "trace": given.trace is not None,
        "offload": given.offload is not None,
        "checkpoint_dir": None if plan.directory is None else str(plan.directory),
        "checkpoint_every": plan.every,
        "checkpoint_minutes": plan.minutes,
        "checkpoint_keep": plan.keep,
        "resume": plan.resume,
        "layout": repr(plan.layout),
        "model": None if model is None else model.signature,
    }
    if plan.part is not None:  # what is compared is the whole model's: the parts have other sizes
        signed |= {"size": plan.part.whole.size, "layout": repr(plan.part.whole), "segment_bytes": given.segment_bytes}
        signed["model"] = None  # of a part it is compared by `in_pieces.everyone`
    return signed


def common(signed: dict[str, Any], *more: str) -> dict[str, Any]:
    """The part of a signature that a run must have in common with one that resumes from it."""
    names = ("size", "dtype", "strategy", "strategy's options", "workers", "rule", "compress", *more)
    return {name: signed[name] for name in names}
