"""`psgd.connect`: the parameter server under somebody else's training loop."""

import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike, NDArray

from psgd.checkpoint.requests import CheckpointRequest
from psgd.checkpoint.resume import Plan, prepare
from psgd.checkpoint.saver import Saver
from psgd.compression import catalog
from psgd.compression import options as compressions
from psgd.connection import Connection
from psgd.kernels.array import array_module
from psgd.kernels.errors import UsageError
from psgd.metrics.run_metrics import RunMetrics
from psgd.nn.layout import Layout
from psgd.optim import catalog as optim
from psgd.optim import rules, staleness
from psgd.optim.rules import Rule
from psgd.optim.schedules import Schedule, constant
from psgd.runtime import placement as placements
from psgd.runtime.agreement import agree
from psgd.runtime.device_vectors import on_device
from psgd.runtime.mesh import Mesh
from psgd.runtime.validation import whole_number
from psgd.server.checkpoint_points import CheckpointPoints
from psgd.server.record_replay import Recorder, Replay, load
from psgd.server.wire import INLINE_BYTES
from psgd.strategies import catalog as strategies
from psgd.strategies import requirements

Vector = NDArray[np.floating]


def connect(
    comm: MPI.Intracomm,
    params: ArrayLike,
    *,
    strategy: str = "sync",
    servers: int | None = None,
    placement: str | Sequence[int] = "auto",
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
    checkpoint_dir: str | Path | None = None,
    checkpoint_every: int = 0,
    checkpoint_minutes: float = 0.0,
    checkpoint_keep: int = 3,
    resume: bool = False,
    run: Mapping[str, Any] | None = None,
    layout: Layout | None = None,
    wish: CheckpointRequest | None = None,
    **options: Any,
) -> "Connection":
    """Joins the ranks of `comm` into parameter servers and workers; use it in a `with` statement on all ranks.

    `servers` ranks serve, the others work. The servers stay inside `__enter__` until all workers have left
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
            place by `step` and owned by the caller; do not write to it inside the block. Of NumPy, or on workers of
            CuPy: then `grads` is too, and what the strategy does not do on the GPU is copied (docs/gpu.md).
        strategy: a name in `psgd.strategies.STRATEGIES`.
        servers: how many ranks serve; None is 1, or 0 on a single rank and for strategies that have none.
        placement: which ranks serve: `dedicated`, the first ones; `spread`, one a node in turn; `colocated`, evenly
            among the workers; `auto`, dedicated on one node and spread on several; or the ranks themselves. Server 0 is
            always rank 0. See `psgd.runtime.placement`.
        lr: the rate, or a schedule of the samples applied so far (`psgd.schedules`).
        rule: `sgd`, `momentum`, `nesterov`, `adam`, or a `psgd.rules.Rule`.
        momentum: factor, for a rule given by name.
        weight_decay: L2 coefficient, for a rule given by name. Both are applied once, on the server.
        clip_norm: largest norm of a step's mean gradient over all shards; 0 is off.
        reduction: "mean" steps along the mean over the samples; "sum" multiplies it by the number of workers.
        staleness_lr: "inverse" or "exponential" shrink stale gradients (`psgd.optim.staleness`); for strategies with
            servers.
        compress: "threshold", "onebit" or "topk" send updates through that codec, "none" whole; None is the strategy's
            default: none, but threshold with decentralized. Momentum, clipping and weight decay then come before
            encoding, on each worker, and the rule must be sgd or momentum (docs/compression.md). No effect on a single
            rank.
        density: share of the elements that an update sends; None is 0.001.
        compress_warmup: samples of all workers before which updates are sent whole.
        compress_sync: steps from one to the next at which all that was left over is sent; 0 is never.
        record: a file for the order in which pushes are applied and workers released; written on server 0.
        replay: such a file, whose order is enforced: the same program on the same data ends with the same bits.
        metrics: filled on server 0 (where there is none, on worker 0).
        segment_bytes: large shards travel in messages of this size; None chooses by the size of a shard.
        checkpoint_dir: folder for checkpoints, seen by all ranks, of this run alone; None makes none.
        checkpoint_every: optimizer steps from one to the next, each worker's own where they do not keep pace; 0 is only
            when asked.
        checkpoint_minutes: the same in time; 0 is off.
        checkpoint_keep: how many of the newest stay, and the one with the best accuracy.
        resume: go on from the newest complete one; start anew where there is none.
        run: what a run that goes on must have in common besides, as JSON can say it.
        layout: names and shapes in `params`, for who reads the checkpoints.
        wish: asks for checkpoints from outside the loop (`psgd.checkpoint.requests`).
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
    count, segment, served = strategies.default_servers(strategy, size), 0, True
    signature: dict[str, Any] = {}
    compression = None
    plan = Plan(
        Path(checkpoint_dir) if isinstance(checkpoint_dir, (str, os.PathLike)) else None,
        checkpoint_every,
        checkpoint_minutes,
        checkpoint_keep,
        resume,
        layout,
    )
    try:
        asked = _asked(checkpoint_dir, plan)
        plan.check()
        if servers is not None:
            count = whole_number("servers", servers)
        asked_options = {
            "servers": servers,
            "staleness_lr": staleness_lr,
            "record": record,
            "replay": replay,
            "compress": compress,
            "density": density,
            "compress_warmup": compress_warmup,
            "compress_sync": compress_sync,
        }
        requirements.check(strategy, asked_options, options)
        served = strategies.find(strategy).servers
        schedule = lr if callable(lr) else constant(optim.LR.check("lr", lr))
        chosen = rule if isinstance(rule, Rule) else rules.create(rule, momentum, weight_decay)
        decide = strategies.create(strategy, size - count, list(inspect.signature(connect).parameters), **options)
        optim.REDUCTION.check("reduction", reduction)
        clip = optim.CLIP_NORM.check("clip_norm", clip_norm)
        scale = staleness.create(staleness_lr)
        if compress is None:
            compress = strategies.find(strategy).default_codec(options)
        share = catalog.DENSITY.default if density is None else density
        compression = compressions.create(compress, share, compress_warmup, compress_sync, chosen)
        if metrics is not None and len(metrics.pushes) != size - count:
            raise UsageError(f"metrics: expected RunMetrics for {size - count} workers, got {len(metrics.pushes)}")
        segment = segment_bytes_for(vector.nbytes // max(1, count), segment_bytes)
        signature = {
            "size": vector.size,
            "dtype": str(vector.dtype),
            "servers": count,
            "placement": placements.checked(placement, count, size),
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
            **asked,
        }
        plan.must_agree(_common(signature, "servers", "reduction"), run or {})
    except Exception as error:  # whatever it is, all ranks must hear of it
        text = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        complaint = complaint or text
    agree(comm, "psgd.connect", signature, complaint)
    prepare(comm, plan)
    if served:
        decide = _ordered(decide, record, replay, signature, comm, plan)
    metrics = metrics or RunMetrics(size - count)
    mesh = Mesh(comm, count, not served, placements.agree(comm, count, placement))
    return Connection(
        mesh,
        vector,
        decide,
        chosen,
        schedule,
        metrics,
        segment // vector.itemsize,
        clip,
        float(size - count) if reduction == "sum" else 1.0,
        scale,
        compression if size > 1 else None,
        Saver(plan, mesh, metrics, wish),
        staged=on_device(vector) and size > 1 and (compression is not None or not strategies.find(strategy).on_device),
    )


def _asked(directory: object, plan: Plan) -> dict[str, Any]:
    """What all ranks must ask of checkpoints alike, under the arguments' names.

    Raises:
        UsageError: `directory`, as it was given, is no path, or there is none for what was asked.
    """
    if directory is not None and plan.directory is None:
        raise UsageError(f"checkpoint_dir: expected a folder's path, got {directory!r}")
    asked = {
        "checkpoint_every": plan.every,
        "checkpoint_minutes": plan.minutes,
        "checkpoint_keep": plan.keep,
        "resume": plan.resume,
    }
    given = [name for name, value in asked.items() if value and (name, value) != ("checkpoint_keep", Plan.keep)]
    if directory is None and given:
        raise UsageError(f"{', '.join(given)}: expected checkpoint_dir with {'them' if given[1:] else 'it'}")
    where = None if plan.directory is None else str(plan.directory)
    return {"checkpoint_dir": where, **asked, "layout": repr(plan.layout)}


def _common(run: dict[str, Any], *more: str) -> dict[str, Any]:
    """What a run must have in common with one that goes on from it."""
    names = ("size", "dtype", "strategy", "strategy's options", "workers", "rule", "compress", *more)
    return {name: run[name] for name in names}


def _ordered(
    strategy: Any,
    record: str | Path | None,
    replay: str | Path | None,
    run: dict[str, Any],
    comm: MPI.Intracomm,
    plan: Plan,
) -> Any:
    """The strategy, with its decisions written to a file or taken from one, and cuts. Only rank 0 touches files."""
    common, leads, complaint = _common(run, "lr"), comm.Get_rank() == 0, None
    try:
        if replay is not None:
            strategy = Replay(run["workers"], load(Path(replay), common) if leads else [])
        elif plan.directory is not None:
            strategy = CheckpointPoints(strategy, run["workers"], plan.every)
        if record is not None and leads:
            strategy = Recorder(strategy, Path(record), common, resumed=plan.found is not None)
    except UsageError as error:
        complaint = str(error)
    try:
        agree(comm, "psgd.connect", {}, complaint)
    except UsageError:
        plan.release()
        raise
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
    try:
        array_module(params)
    except UsageError as error:
        return np.empty(0, np.float32), f"params: {error}"
    vector = cast(Vector, params)
    if vector.dtype not in (np.float32, np.float64):
        return vector, f"params: expected float32 or float64, got {vector.dtype}: convert it with astype"
    if vector.ndim != 1 or not vector.flags.c_contiguous:
        return (
            vector,
            f"params: expected a contiguous 1-D array, got shape {vector.shape}: pass params.reshape(-1)",
        )
    if not on_device(vector) and not vector.flags.writeable:
        return vector, "params: expected a writable array, got a read-only one: pass a copy"
    return vector, None
