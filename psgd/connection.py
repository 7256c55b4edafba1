"""`psgd.connect`: the parameter server under somebody else's training loop."""

import operator
from functools import partial
from types import TracebackType
from typing import Any, cast

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike, NDArray

from psgd import rules, strategies
from psgd.agreement import agree
from psgd.client import Client, LocalClient, MpiClient
from psgd.collectives.split import split
from psgd.collectives.waiting import Waiter
from psgd.gradients import Gradients, allocate
from psgd.kernels.errors import ContractError, PeerLostError, UsageError
from psgd.mesh import Mesh
from psgd.metrics import RunMetrics
from psgd.rules import Rule
from psgd.schedules import Schedule, constant
from psgd.server import Server
from psgd.server_transport import MpiServerTransport
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
    vector, complaint = _checked(params)
    size = comm.Get_size()
    count = (1 if size > 1 else 0) if servers is None else servers
    workers = size - count
    try:
        schedule = lr if callable(lr) else constant(_positive(lr))
        chosen = rule if isinstance(rule, Rule) else rules.create(rule, momentum, weight_decay)
        decide = strategies.create(strategy, workers, **options)
        if reduction not in ("mean", "sum"):
            raise UsageError(f"reduction: expected 'mean' or 'sum', got {reduction!r}")
        if not (isinstance(clip_norm, int | float) and 0.0 <= clip_norm < float("inf")):
            raise UsageError(f"clip_norm: expected a number of 0 (off) or more, got {clip_norm!r}")
    except UsageError as error:
        complaint = complaint or str(error)
    signature = {
        "size": vector.size,
        "dtype": str(vector.dtype),
        "servers": count,
        "strategy": strategy,
        "strategy's options": repr(sorted(options.items())),
        "rule": rule.name if isinstance(rule, Rule) else rule,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "clip_norm": clip_norm,
        "reduction": reduction,
        "segment_bytes": segment_bytes,
        "lr": [schedule(samples) for samples in (0, 1e3, 1e6)] if callable(lr) else repr(lr),
    }
    agree(comm, "psgd.connect", signature, complaint)
    return Connection(
        Mesh(comm, count),
        vector,
        decide,
        chosen,
        schedule,
        metrics or RunMetrics(workers),
        max(1, (segment_bytes or _segment_bytes(vector.nbytes // max(1, count))) // vector.itemsize),
        clip_norm,
        float(workers) if reduction == "sum" else 1.0,
    )


def _segment_bytes(shard_bytes: int) -> int:
    """Measured on two cores with both MPIs, 2026-11-28: within a tenth of the fastest, from 256 KiB to 64 MiB."""
    return 512 << 10 if shard_bytes < 8 << 20 else 1 << 20


def _count(samples: Any) -> int:
    try:
        return operator.index(samples)
    except TypeError:
        raise UsageError(f"step: samples: expected a whole number, got {samples!r}") from None


def _positive(lr: float) -> float:
    if not (isinstance(lr, int | float) and 0.0 < lr < float("inf")):
        raise UsageError(f"lr: expected a positive number or a schedule, got {lr!r}")
    return float(lr)


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
        self._transport: MpiWorkerTransport | None = None
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
        if type(samples) is not int:
            samples = _count(samples)
        if samples < 0:
            raise UsageError(f"step: samples: expected 0 or more, got {samples}")
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
        waiter = Waiter.for_node(mesh.world)
        if grads.own is None:
            self._serve(grads, waiter)
            self._skipping = True
            return self
        self._transport = MpiWorkerTransport(
            mesh, params, grads.own, self._shards, reached=grads.reached, segment=self._segment, waiter=waiter
        )
        self._client = MpiClient(self._transport, params, grads.own, first=mesh.index == 0)
        self._client.start()
        return self

    def _serve(self, grads: Gradients, waiter: Waiter) -> None:
        mesh, part = self.mesh, self._shards[self.mesh.index]
        shard = self._shard(self._params[part.start : part.stop], sum_over_shards=self._sum_over_servers)
        transport = MpiServerTransport(
            mesh,
            shard.params,
            shard.ranges,
            grads=[None if whole is None else whole[part.start : part.stop] for whole in grads.workers],
            waiter=waiter,
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
        transport.close()
        self.bytes_sent, self.bytes_received = transport.bytes_sent, transport.bytes_received

    def _sum_over_servers(self, value: float) -> float:
        """Adds in server order, so that every server gets the same bits."""
        comm = self.mesh.server
        if comm is None or comm.Get_size() == 1:
            return value
        parts = np.empty(comm.Get_size(), np.float64)
        comm.Allgather(np.array([value]), parts)
        return float(sum(parts.tolist()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        client, transport, skipping = self._client, self._transport, self._skipping
        self._client, self._skipping = None, False
        if client is None:
            if kind is None or (skipping and kind is _WorkersOnly):
                self.mesh.free()
            return skipping and kind is _WorkersOnly
        if kind is None:
            client.finish()
        elif not issubclass(kind, PeerLostError | ContractError | MPI.Exception):
            client.fail()
        if transport is not None:
            self.bytes_sent, self.bytes_received = transport.bytes_sent, transport.bytes_received
        if kind is None:
            self.mesh.free()
        return False
