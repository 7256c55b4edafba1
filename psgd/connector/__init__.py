"""`psgd.connect`: the parameter server for a training loop of your own.

Owns the checks of its arguments (`options`), and what all ranks must pass alike (`signature`). May import every room
but `training`. Begin with `connect`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpi4py import MPI
from numpy.typing import ArrayLike

from psgd.checkpoint.pieces.model_part import ModelPart
from psgd.checkpoint.requests import CheckpointRequest
from psgd.checkpoint.resume import Plan, prepare
from psgd.checkpoint.saver import Saver
from psgd.connection import Connection
from psgd.connector import in_pieces
from psgd.connector.observed import ObservedConnection
from psgd.connector.options import ConnectOptions, check, checked_vector, prepared
from psgd.connector.signature import common, signature
from psgd.kernels.errors import UsageError
from psgd.kernels.notice import say
from psgd.metrics.callback import Callback
from psgd.metrics.run_metrics import RunMetrics
from psgd.metrics.trace import chrome
from psgd.metrics.trace.run_trace import Among, RunTrace
from psgd.nn.layout import Layout
from psgd.optim.host_updates import HostUpdates
from psgd.optim.rules import Rule
from psgd.optim.schedules import Schedule
from psgd.runtime import placement as placements
from psgd.runtime.agreement import agree
from psgd.runtime.mesh import Mesh
from psgd.server.checkpoint_points import CheckpointPoints
from psgd.server.policy import Policy
from psgd.server.record_replay import Recorder, Replay, load
from psgd.strategies.sharded.sharded_worker import Shard
from psgd.worker.bound_model import BoundModel


def connect(
    comm: MPI.Intracomm,
    params: "ArrayLike | BoundModel",
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
    on_nan: str = "warn",
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
    checkpoint_request: CheckpointRequest | None = None,
    part: ModelPart | None = None,
    callbacks: Sequence[Callback] = (),
    trace: str | Path | None = None,
    shard: Shard = 0,
    offload: str | HostUpdates | None = None,
    **options: Any,
) -> "Connection":
    """Joins the ranks of `comm` into parameter servers and workers; use it in a `with` statement on all ranks.

    `servers` ranks serve, the others work. The servers stay inside `__enter__` until all workers have left
    the block; then the block's body is skipped there at its first use of a worker's attribute. The first worker's
    `params` are where everyone starts. On leaving, every rank's `params` hold the final weights, servers' too::

        with psgd.connect(comm, params, strategy="async", lr=0.1) as ps:
            for batch in my_shard(ps.worker, ps.workers):
                ps.grads[:] = my_gradient(ps.params, batch)
                ps.step(samples=len(batch))
        if ps.is_main:  # rank 0
            numpy.save("weights.npy", params)

    Args:
        comm: any intracommunicator; a private duplicate is used and freed at the end. Collective.
        params: float32 or float64, 1-D, contiguous, writable; the same size and dtype on all ranks. Updated in
            place by `step` and owned by the caller; do not write to it inside the block. Of NumPy, or on workers of
            CuPy: then `grads` is too, and what the strategy does not do on the GPU is copied (docs/gpu.md). Or a
            PyTorch module that `psgd.torch.wrap` has wrapped (docs/pytorch.md), or what
            `psgd.jax.wrap` gives (docs/jax.md).
        strategy: a name in `psgd.strategies.STRATEGIES`.
        servers: number of servers; None means 1, or 0 on a single rank and for strategies without servers.
        placement: which ranks serve: `dedicated`, the first ones; `spread`, one per node in turn; `colocated`, evenly
            among the workers; `auto`, dedicated on one node and spread on several; or a list of the ranks. Server 0 is
            always rank 0.
        lr: the learning rate, or a schedule: a function of the samples applied so far (`psgd.schedules`).
        rule: `sgd`, `momentum`, `nesterov`, `adam`, or a `psgd.rules.Rule`.
        momentum: factor, for a rule given by name.
        weight_decay: L2 coefficient, for a rule given by name. Both are applied once, on the servers.
        clip_norm: maximum norm of a step's mean gradient over all shards; 0 is off.
        reduction: "mean" steps along the mean over the samples; "sum" multiplies it by the number of workers.
        staleness_lr: "inverse" or "exponential" shrink stale gradients (`psgd.optim.staleness`); for strategies with
            servers.
        on_nan: what happens if a worker's gradient is not finite: "warn" gives one warning that names rank and step,
            "skip" also omits such gradients (`skipped`), "stop" raises DivergedError on all ranks.
        compress: the codec of the updates, "threshold", "onebit" or "topk"; "none" sends them whole; None is the
            strategy's default: none, but threshold with decentralized. Momentum, clipping and weight decay then
            come before encoding, on each worker, and the rule must be sgd or momentum (docs/compression.md). Refused on
            a single rank.
        density: share of the elements that an update sends; None means 0.001.
        compress_warmup: number of samples, of all workers together, before which updates are sent whole.
        compress_sync: number of steps after which all residuals are sent, each time; 0 means never.
        record: a file to which server 0 writes the order in which pushes are applied and workers released.
        replay: such a file, whose order is enforced: the same program on the same data ends with the same bits.
        metrics: counters, filled on server 0 (without servers, on worker 0).
        segment_bytes: large shards travel in messages of this size; None chooses by the size of a shard.
        checkpoint_dir: folder for this run's checkpoints alone, which all ranks can access; None saves none.
        checkpoint_every: optimizer steps between checkpoints, each worker's own where they do not keep pace; 0 saves
            only on request.
        checkpoint_minutes: minutes between checkpoints; 0 is off.
        checkpoint_keep: how many of the newest are kept, besides the one with the best accuracy.
        resume: continue from the newest complete checkpoint, or start from the beginning if there is none.
        run: what else all ranks that pass it, and a run that resumes, must have in common, as JSON values: the size of
            the data, for example.
        layout: names and shapes in `params`, for readers of the checkpoints; a wrapped module has its own.
        checkpoint_request: requests checkpoints from outside the loop (`psgd.checkpoint.requests`).
        part: which part of a model `params` are, where several ranks hold one model together (docs/parallel.md); then
            `comm` joins the ranks that have the same part.
        callbacks: told of steps, epochs, checkpoints and errors on this rank (`psgd.Callback`).
        trace: a file to which rank 0 writes what each rank did when, for chrome://tracing or ui.perfetto.dev.
        shard: 1 keeps the optimizer's state on all workers together, each its part, with strategy allreduce
            (docs/sharded.md); 0 is off. Models that run through a `psgd.parallel.sharded.exchange.Exchange` pass that.
        offload: "optimizer" keeps the optimizer's state on the host and takes steps there, for parameters on a GPU; on
            a single rank while backward still runs, if you call `overlap` (docs/gpu.md#offload).
        **options: the strategy's own, and `accumulate`, which every strategy has: the number of a worker's steps whose
            gradients make one update.

    Raises:
        UsageError: a wrong argument on some rank; the same error on all ranks.
        ContractError: ranks passed different arguments; the same error on all ranks.
        DivergedError: on all ranks, in the block, with `on_nan="stop"`.
        PeerLostError: on every other rank, if a worker leaves the block with an error.
    """
    arguments = dict(locals())
    del arguments["comm"], arguments["params"]
    given = ConnectOptions(**arguments)
    if not isinstance(comm, MPI.Intracomm):
        raise UsageError(f"psgd.connect: comm: expected an intracommunicator of mpi4py, got {type(comm).__name__}")
    model = None
    if isinstance(params, BoundModel):
        model, (vector, complaint) = params, prepared(params)
        given = replace(given, layout=layout or model.layout, shard=getattr(model, "sharding", given.shard))
    else:
        vector, complaint = checked_vector(params)
    checked, signed = None, {}
    try:
        checked = check(given, vector, comm.Get_size())
        signed = signature(given, checked, vector, model)
        if trace is not None and comm.Get_rank() == 0:
            chrome.check("trace", Path(trace))
        checked.plan.must_agree(common(signed, "servers", "reduction"), run or {})
    except Exception as error:  # whatever it is, all ranks must raise it
        text = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        complaint = complaint or text
    epoch = metrics.samples_per_epoch if isinstance(metrics, RunMetrics) else 0
    everyone, different = in_pieces.everyone(comm, part, model)
    complaint = complaint or different
    agree(everyone, "psgd.connect", signed, complaint, {"run": run or None, "metrics.samples_per_epoch": epoch or None})
    assert checked is not None  # else there was a complaint
    plan, chosen = checked.plan, checked.run
    if plan.part is not None:
        chosen = replace(chosen, optimizer=in_pieces.optimizer(chosen.optimizer, plan.part))
    prepare(everyone, plan)
    if not given.serverless:
        chosen = replace(chosen, strategy=_ordered(chosen.strategy, given, signed, comm, plan))
    if comm.Get_size() == 1 and chosen.compression is not None:
        if given.compress is not None:
            say("warning: resume: a single rank sends nothing, so compress has no effect")
        chosen = replace(chosen, compression=None)
    metrics = metrics or RunMetrics(checked.workers)
    serving = placements.agree(comm, checked.servers, placement)
    if plan.part is not None:
        in_pieces.agree_on_servers(plan.part, serving)
    mesh = Mesh(comm, checked.servers, given.serverless, serving)
    chosen = replace(chosen, updates=None if model is not None else chosen.updates)  # hooks run in threads of their own
    if model is not None and chosen.staged and mesh.role == "server":
        vector, chosen = model.serve(), replace(chosen, staged=False)
    saver = Saver(plan, mesh, metrics, checkpoint_request, chosen.accumulate)
    if trace is None and not callbacks:
        return Connection(mesh, vector, chosen, metrics, saver, model)
    watched = ObservedConnection(mesh, vector, chosen, metrics, saver, model)
    traced = None if trace is None else _traced(Path(trace), mesh, comm.Get_rank(), plan.part, watched)
    return watched.observe(callbacks, traced)


def _traced(path: Path, mesh: Mesh, rank: int, part: ModelPart | None, watched: ObservedConnection) -> RunTrace:
    """This rank's part of one trace of all ranks, those of other parts of the model too. Collective, blocks."""
    if part is None:
        return RunTrace(path, rank, mesh, watched.wait)
    member = Among(part.world, mesh.role, mesh.index, part.place)
    return RunTrace(path, part.world.Get_rank(), member, watched.wait)


def _ordered(policy: Policy, given: ConnectOptions, signed: dict[str, Any], comm: MPI.Intracomm, plan: Plan) -> Policy:
    """The policy, with its decisions written to a file or taken from one, and with checkpoints.

    Collective; only rank 0 touches files.
    """
    shared, leads, complaint = common(signed, "lr"), comm.Get_rank() == 0, None
    try:
        if given.replay is not None:
            policy = Replay(signed["workers"], load(Path(given.replay), shared) if leads else [])
        elif plan.directory is not None:
            policy = CheckpointPoints(policy, signed["workers"], plan.every)
        if given.record is not None and leads:
            policy = Recorder(policy, Path(given.record), shared, resumed=plan.found is not None)
    except UsageError as error:
        complaint = str(error)
    try:
        agree(comm, "psgd.connect", {}, complaint)
    except UsageError:
        plan.release()
        raise
    return policy
