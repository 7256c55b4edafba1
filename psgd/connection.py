"""`psgd.connect`: the parameter server under somebody else's training loop."""

from functools import partial
from types import TracebackType
from typing import Any, cast

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike, NDArray

from psgd import rules, strategies
from psgd.agreement import agree
from psgd.alarm import Alarm
from psgd.arguments import real_number, whole_number
from psgd.client import Client, LocalClient, MpiClient
from psgd.collectives.split import split
from psgd.collectives.waiting import Waiter
from psgd.gradients import Gradients, allocate
from psgd.kernels.errors import UsageError
from psgd.mesh import Mesh
from psgd.metrics import RunMetrics
from psgd.rules import Rule
from psgd.schedules import Schedule, constant
from psgd.server import Server
from psgd.server_transport import INLINE_BYTES, MpiServerTransport
from psgd.shard import Shard
from psgd.worker_transport import MpiWorkerTransport

Vector = NDArray[np.floating]

_ALIGN_BYTES = 64


class _WorkersOnly(BaseException):
    """Raised on a server that reaches the training loop; swallowed where the `with` block ends."""


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
        servers: how many ranks serve; None is 1, or 0 on a single rank.
        lr: the rate, or a schedule of the samples applied so far (`psgd.schedules`).
        rule: `sgd`, `momentum`, `nesterov`, `adam`, or a `psgd.rules.Rule`.
        momentum: factor, for a rule given by name.
        weight_decay: L2 coefficient, for a rule given by name. Both are applied once, on the server.
        clip_norm: largest norm of a step's mean gradient over all shards; 0 is off.
        reduction: "mean" steps along the mean over the samples; "sum" multiplies it by the number of workers.
        metrics: filled on server 0 (on a single rank: here).
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
    count, segment = (1 if size > 1 else 0), 0
    signature: dict[str, Any] = {}
    try:
        if servers is not None:
            count = whole_number("servers", servers)
        schedule = lr if callable(lr) else constant(real_number("lr", lr, above=0.0))
        chosen = rule if isinstance(rule, Rule) else rules.create(rule, momentum, weight_decay)
        decide = strategies.create(strategy, size - count, **options)
        if reduction not in ("mean", "sum"):
            raise UsageError(f"reduction: expected 'mean' or 'sum', got {reduction!r}")
        clip = real_number("clip_norm", clip_norm)
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
        }
    except Exception as error:  # whatever it is, all ranks must hear of it
        text = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        complaint = complaint or text
    agree(comm, "psgd.connect", signature, complaint)
    return Connection(
        Mesh(comm, count),
        vector,
        decide,
        chosen,
        schedule,
        metrics or RunMetrics(size - count),
        segment // vector.itemsize,
        clip,
        float(size - count) if reduction == "sum" else 1.0,
    )


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


class Connection:
    """What `psgd.connect` gives: a context manager; inside it, the worker's handle.

    Attributes:
        workers, servers: how many there are.
        mesh: the ranks by role.
        metrics: counters; filled on server 0.
        bytes_sent, bytes_received: of this rank, headers included.
    """

    def __init__(
        self,
        mesh: Mesh,
        params: Vector,
        strategy: strategies.Strategy,
        rule: Rule,
        schedule: Schedule,
        metrics: RunMetrics,
        segment: int,
        clip_norm: float,
        reduction_factor: float,
    ) -> None:
        self.mesh = mesh
        self._params = params
        self._skipping = False
        self.metrics = metrics
        self.workers, self.servers = mesh.workers, mesh.servers
        self.bytes_sent = self.bytes_received = 0
        self._strategy = strategy
        self._segment = segment
        self._shards = split(params.size, max(1, mesh.servers), max(1, _ALIGN_BYTES // params.itemsize))
        self._client: Client | None = None
        self._transport: MpiWorkerTransport | MpiServerTransport | None = None
        self._alarm: Alarm | None = None
        self._waiter = Waiter(crowded=False)
        self._shard = partial(
            Shard, rule=rule, schedule=schedule, segment=segment, clip_norm=clip_norm, reduction_factor=reduction_factor
        )

    @property
    def is_server(self) -> bool:
        """Whether this rank serves; False inside the body, which servers skip."""
        return self.mesh.role == "server"

    @property
    def params(self) -> Vector:
        """The caller's vector. On a server, inside the block, it ends the block's body."""
        if self._skipping:
            raise _WorkersOnly
        return self._params

    @property
    def worker(self) -> int:
        """This worker's index, from 0. On a server it ends the block's body."""
        self._only_on_workers()
        return self.mesh.index

    @property
    def grads(self) -> Vector:
        """The gradient vector, of the size and dtype of `params`. On a server it ends the block's body."""
        return self._only_on_workers().grads

    @property
    def version(self) -> int:
        """Optimizer steps (groups applied) behind `params`."""
        return self._only_on_workers().version

    @property
    def stop(self) -> bool:
        """The server asks to stop early."""
        return self._only_on_workers().stop

    @property
    def waited_s(self) -> float:
        """Seconds this worker has spent in `step`."""
        return self._only_on_workers().waited_s

    def step(self, samples: int = 1, loss: float = float("nan")) -> None:
        """Pushes `grads`, the mean gradient over `samples`, and pulls `params`. Blocks until this worker may go on.

        Args:
            samples: weight of this gradient in its group's mean; 0 sends none and only keeps pace.
            loss: mean loss over the samples, for the log.

        Raises:
            UsageError: samples is not a whole number of 0 or more, or this is outside the `with` block.
            PeerLostError: another worker left the block with an error.
        """
        client = self._only_on_workers()
        if type(samples) is not int or samples < 0:
            samples = whole_number("step: samples", samples)
        client.step(samples, loss)

    def report(self, accuracy: float, loss: float) -> None:
        """Tells server 0 of an evaluation of `params` (for the log, and to stop at a target)."""
        self._only_on_workers().report(accuracy, loss)

    def _only_on_workers(self) -> Client:
        if self._skipping:
            raise _WorkersOnly
        if self._client is None:
            raise UsageError("psgd.connect: this works inside its `with` block only: with psgd.connect(...) as ps: ...")
        return self._client

    def __enter__(self) -> "Connection":
        mesh, params = self.mesh, self._params
        if mesh.servers == 0:
            shard = self._shard(params)
            self._client = LocalClient(shard, np.zeros_like(params), self.metrics)
            self._client.start()
            return self
        grads = allocate(mesh, params.size, params.dtype)
        if mesh.role == "server":
            peers, cause = [mesh.worker_rank(w) for w in range(mesh.workers)], -1 - mesh.index
        else:
            peers, cause = [mesh.server_rank(m) for m in range(mesh.servers)], mesh.index
        self._alarm = Alarm(mesh.world, peers, cause)
        self._waiter = Waiter.for_node(mesh.world, self._alarm.check)
        try:
            if grads.own is None:
                self._serve(grads)
                self._skipping = True
            else:
                self._begin(grads.own, grads.reached)
        except BaseException:
            self._end(failed=True)
            raise
        return self

    def _begin(self, grads: Vector, reached: list[bool]) -> None:
        mesh, params = self.mesh, self._params
        self._transport = transport = MpiWorkerTransport(
            mesh, params, grads, self._shards, reached=reached, segment=self._segment, waiter=self._waiter
        )
        self._client = MpiClient(transport, params, grads, first=mesh.index == 0)
        self._client.start()

    def _serve(self, grads: Gradients) -> None:
        mesh, part = self.mesh, self._shards[self.mesh.index]
        shard = self._shard(self._params[part.start : part.stop], sum_over_shards=self._sum_over_servers)
        self._transport = transport = MpiServerTransport(
            mesh,
            shard.params,
            shard.ranges,
            grads=[None if whole is None else whole[part.start : part.stop] for whole in grads.workers],
            waiter=self._waiter,
            follows=mesh.index > 0 and not self._strategy.fixed_order,
        )
        server = Server(
            transport,
            shard,
            self._strategy,
            workers=mesh.workers,
            index=mesh.index,
            servers=mesh.servers,
            metrics=self.metrics,
        )
        server.run()

    def _end(self, failed: bool) -> None:
        """Ends this rank's part: rings the alarm if it failed, and takes back every request.

        After a failure the communicators are not freed: a late message would meet whoever gets their number next.
        """
        transport, self._transport = self._transport, None
        try:
            if failed and self._alarm is not None:
                self._alarm.ring()
            if transport is not None:
                self.bytes_sent, self.bytes_received = transport.bytes_sent, transport.bytes_received
                transport.close()
            if self._alarm is not None:
                self._alarm.close()
            if not failed:
                self.mesh.free()
        except MPI.Exception:
            if not failed:  # else the first error is the one to see
                raise
        finally:
            self._alarm = None

    def _sum_over_servers(self, value: float) -> float:
        """Adds in server order, so that every server gets the same bits."""
        comm = self.mesh.server
        if comm is None or comm.Get_size() == 1:
            return value
        mine, parts = np.array([value]), np.empty(comm.Get_size(), np.float64)
        self._waiter.flowing(comm.Iallgather(mine, parts).Test)
        return float(sum(parts.tolist()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        client, skipping = self._client, self._skipping
        self._client, self._skipping = None, False
        if client is None:
            self._end(failed=False)
            return skipping and kind is _WorkersOnly
        try:
            if kind is None:
                client.finish()
        except BaseException:
            self._end(failed=True)
            raise
        self._end(failed=kind is not None)
        return False
