"""`psgd.connect`: the parameter server under somebody else's training loop."""

from pathlib import Path
from typing import Any, cast

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike, NDArray

from psgd import compression as compressions
from psgd import rules, staleness, strategies
from psgd.agreement import agree
from psgd.arguments import real_number, whole_number
from psgd.connection import Connection
from psgd.kernels.errors import UsageError
from psgd.mesh import Mesh
from psgd.metrics import RunMetrics
from psgd.recording import Recorder, Replay, load
from psgd.rules import Rule
from psgd.schedules import Schedule, constant
from psgd.wire import INLINE_BYTES

Vector = NDArray[np.floating]


def connect(
    comm: MPI.Intracomm,
    params: ArrayLike,
    *,
    strategy: str = "sync",
    servers: int | None = None,
    lr: float | Schedule = 0.1,
    rule: str | Rule = "sgd",
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    clip_norm: float = 0.0,
    reduction: str = "mean",
    staleness_lr: str = "none",
    compress: str | None = None,
    density: float | None = None,
    compress_warmup: float = 0.0,
    compress_sync: int = 0,
    record: str | Path | None = None,
    replay: str | Path | None = None,
    metrics: RunMetrics | None = None,
    segment_bytes: int | None = None,
    **options: Any,
) -> "Connection":
    """Joins the ranks of `comm` into parameter servers and workers; use it in a `with` statement on all ranks.

    The first `servers` ranks serve, the others work. The servers stay inside `__enter__` until all workers have left
    the block; then the block's body is skipped there at its first use of a worker's attribute. The first worker's
    `params` are where everyone starts. On leaving, every worker's `params` hold the final weights; a server's
    hold its own part of them.

        with psgd.connect(comm, params, strategy="async", lr=0.1) as ps:
            for batch in my_shard(ps.worker, ps.workers):
                ps.grads[:] = my_gradient(ps.params, batch)
                ps.step(samples=len(batch))

    Args:
        comm: any intracommunicator; a private duplicate is used and freed at the end. Collective.
        params: float32 or float64, 1-D, contiguous, writable; the same size and dtype on all ranks. Updated in
            place by `step` and owned by the caller; do not write to it inside the block.
        strategy: a name in `psgd.strategies.NAMES`.
        servers: how many ranks serve; None is 1, or 0 on a single rank and for strategies that have none.
        lr: the rate, or a schedule of the samples applied so far (`psgd.schedules`).
        rule: `sgd`, `momentum`, `nesterov`, `adam`, or a `psgd.rules.Rule`.
        momentum: factor, for a rule given by name.
        weight_decay: L2 coefficient, for a rule given by name. Both are applied once, on the server.
        clip_norm: largest norm of a step's mean gradient over all shards; 0 is off.
        reduction: "mean" steps along the mean over the samples; "sum" multiplies it by the number of workers.
        staleness_lr: "inverse" or "exponential" shrink what is stale (`psgd.staleness`); for strategies with servers.
        compress: "threshold", "onebit" or "topk" send updates through that codec, "none" whole; None is the strategy's
            default: none, but threshold with decentralized. Momentum, clipping and weight decay then come before
            encoding, on each worker, and the rule must be sgd or momentum (`psgd.compression`, docs/compression.md). No
            effect on a single rank.
        density: share of the elements that an update sends; None is 0.001.
        compress_warmup: samples of all workers before which updates are sent whole.
        compress_sync: steps from one to the next at which all that was left over is sent; 0 is never.
        record: a file for the order in which pushes are applied and workers released; written on server 0.
        replay: such a file, whose order is enforced: the same program on the same data ends with the same bits.
        metrics: filled on server 0 (where there is none, on worker 0).
        segment_bytes: large shards travel in messages of this size; None chooses by the size of a shard.
        **options: the strategy's own.

    Raises:
        UsageError: a wrong argument on some rank; the same error on all ranks.
        ContractError: ranks that passed different arguments; the same error on all ranks.
        PeerLostError: on every other rank, if a worker leaves the block with an error.
    """
    if not isinstance(comm, MPI.Intracomm):
        raise UsageError(f"psgd.connect: comm: expected an intracommunicator of mpi4py, got {type(comm).__name__}")
    vector, complaint = _checked(params)
    size = comm.Get_size()
    count, segment = (1 if size > 1 and not strategies.serverless(strategy) else 0), 0
    signature: dict[str, Any] = {}
    compression = None
    try:
        if servers is not None:
            count = whole_number("servers", servers)
            if count and strategies.serverless(strategy):
                raise UsageError(f"servers: strategy {strategy} has none, expected 0, got {count}")
        schedule = lr if callable(lr) else constant(real_number("lr", lr, above=0.0))
        chosen = rule if isinstance(rule, Rule) else rules.create(rule, momentum, weight_decay)
        decide = strategies.create(strategy, size - count, **options)
        if reduction not in ("mean", "sum"):
            raise UsageError(f"reduction: expected 'mean' or 'sum', got {reduction!r}")
        clip = real_number("clip_norm", clip_norm)
        scale = staleness.create(staleness_lr)
        if compress is None and strategy == "decentralized" and options.get("peers") != "pairs":
            compress = "threshold"
        if compress is None and (density is not None or compress_warmup or compress_sync):
            raise UsageError(
                "density, compress_warmup, compress_sync: expected compress=threshold, onebit or topk with it"
            )
        share = compressions.DENSITY if density is None else density
        compression = compressions.create(compress, share, compress_warmup, compress_sync, chosen)
        if compression is not None and strategy not in strategies.COMPRESSIBLE:
            able = ", ".join(strategies.COMPRESSIBLE)
            raise UsageError(f"compress: strategy {strategy} averages parameters, expected one of {able}")
        if strategies.serverless(strategy) and (scale or record or replay):
            raise UsageError(f"staleness_lr, record, replay: strategy {strategy} has no servers to do that")
        if metrics is not None and len(metrics.pushes) != size - count:
            raise UsageError(f"metrics: expected RunMetrics for {size - count} workers, got {len(metrics.pushes)}")
        segment = segment_bytes_for(vector.nbytes // max(1, count), segment_bytes)
        signature = {
            "size": vector.size,
            "dtype": str(vector.dtype),
            "servers": count,
            "strategy": strategy,
            "strategy's options": repr(sorted(options.items())),
            "rule": chosen.name,
            "momentum": repr(momentum),
            "weight_decay": repr(weight_decay),
            "clip_norm": clip,
            "reduction": reduction,
            "segment_bytes": segment,
            "lr": [float(schedule(samples)) for samples in (0, 1e3, 1e6)],
            "staleness_lr": staleness_lr,
            "compress": repr(compression),
            "workers": size - count,
            "replay": replay is not None,
        }
        decide = _ordered(decide, record, replay, signature, comm.Get_rank())
    except Exception as error:  # whatever it is, all ranks must hear of it
        text = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        complaint = complaint or text
    agree(comm, "psgd.connect", signature, complaint)
    return Connection(
        Mesh(comm, count, peers=strategies.serverless(strategy)),
        vector,
        decide,
        chosen,
        schedule,
        metrics or RunMetrics(size - count),
        segment // vector.itemsize,
        clip,
        float(size - count) if reduction == "sum" else 1.0,
        scale,
        compression if size > 1 else None,
    )


def _ordered(
    strategy: Any, record: str | Path | None, replay: str | Path | None, run: dict[str, Any], rank: int
) -> Any:
    """The strategy, with its decisions written to a file or taken from one; only rank 0 touches files."""
    common = {
        key: run[key]
        for key in ("size", "dtype", "strategy", "strategy's options", "workers", "rule", "lr", "compress")
    }
    if replay is not None:
        strategy = Replay(run["workers"], load(Path(replay), common) if rank == 0 else [])
    if record is not None and rank == 0:
        strategy = Recorder(strategy, Path(record), common)
    return strategy


def segment_bytes_for(shard_bytes: int, asked: int | None) -> int:
    """Bytes of a segment: what was asked for (what travels inline is one), or by the size of the shard.

    Measured on two cores with both MPIs, 2026-11-28: within a tenth of the fastest from 256 KiB to 64 MiB.
    """
    if asked is not None:
        if whole_number("segment_bytes", asked) < 1:
            raise UsageError(f"segment_bytes: expected 1 or more, got {asked}")
        return max(INLINE_BYTES, asked)
    return 512 << 10 if shard_bytes < 8 << 20 else 1 << 20


def _checked(params: ArrayLike) -> tuple[Vector, str | None]:
    """The vector itself, and what is wrong with it (or None)."""
    if not isinstance(params, np.ndarray):
        return np.empty(0, np.float32), f"params: expected a NumPy array, got {type(params).__name__}"
    vector = cast(Vector, params)
    if vector.dtype not in (np.float32, np.float64):
        return vector, f"params: expected float32 or float64, got {vector.dtype}: convert it with astype"
    if vector.ndim != 1 or not vector.flags.c_contiguous:
        return (
            vector,
            f"params: expected a contiguous 1-D array, got shape {vector.shape}: pass params.reshape(-1)",
        )
    if not vector.flags.writeable:
        return vector, "params: expected a writable array, got a read-only one: pass a copy"
    return vector, None
