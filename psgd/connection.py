"""What `psgd.connect` gives: a rank's part of a parameter server, as a context manager."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.checkpoint.folder import Checkpoint
from psgd.checkpoint.requests import SAVE_AND_STOP
from psgd.checkpoint.resume import Plan, say
from psgd.checkpoint.saver import Saver
from psgd.collectives.communicator import Communicator
from psgd.collectives.mpi.split import ALIGN_BYTES, split
from psgd.collectives.mpi.wait import Waiter
from psgd.collectives.mpi.watchdog import BACKGROUND
from psgd.compression.options import Compression
from psgd.kernels.errors import UsageError
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim import rules
from psgd.optim.optimizer import OptimizerOptions
from psgd.optim.rules import Rule
from psgd.optim.schedules import Schedule
from psgd.runtime.alarm import Alarm
from psgd.runtime.device_vectors import on_device
from psgd.runtime.mesh import Mesh
from psgd.runtime.validation import whole_number
from psgd.server.gradient_memory import Gradients, allocate, apart
from psgd.server.record_replay import Recorder
from psgd.server.serve import serve
from psgd.server.server_transport import MpiServerTransport
from psgd.server.shard import Shard
from psgd.server.worker_transport import MpiWorkerTransport
from psgd.worker.accumulation import AccumulatingWorker
from psgd.worker.context import RunContext
from psgd.worker.interface import Worker
from psgd.worker.local import LocalWorker
from psgd.worker.push_pull import PushPullWorker

Vector = NDArray[np.floating]


class _WorkersOnly(BaseException):
    """Raised on a server that reaches the training loop; swallowed where the `with` block ends."""


class Connection:
    """What `psgd.connect` gives: a context manager; inside it, the worker's handle.

    Attributes:
        workers, servers: how many there are.
        mesh: the ranks by role.
        metrics: counters; filled on server 0.
        bytes_sent, bytes_received: of this rank, headers included.
        leaving: the run was asked to save and stop, and has.
    """

    def __init__(
        self,
        mesh: Mesh,
        params: Vector,
        strategy: Any,
        rule: Rule,
        schedule: Schedule,
        metrics: RunMetrics,
        segment: int,
        clip_norm: float,
        reduction_factor: float,
        scale: Callable[[int], float] | None = None,
        compression: Compression | None = None,
        saver: Saver | None = None,
        staged: bool = False,
        accumulate: int = 1,
    ) -> None:
        self.mesh = mesh
        self._far: Vector | None = None  # the caller's, on a GPU, where the strategy works on the host
        if staged:
            from psgd.worker.staged import host_copy

            self._far, params = params, host_copy(params)
        self._accumulate = accumulate
        self.leaving = False
        self._saver = saver or Saver(Plan(), mesh, metrics)
        self._params = params
        self._skipping = False
        self.metrics = metrics
        self.workers, self.servers = mesh.workers, mesh.servers
        self.bytes_sent = self.bytes_received = 0
        self._strategy = strategy  # see psgd.strategies.create
        self._scale = scale
        self._compression, self._clip_norm = compression, clip_norm
        behind, clip = (rule, clip_norm) if compression is None else (rules.sgd(), 0.0)
        self._segment = segment
        self._shards = split(params.size, max(1, mesh.servers), max(1, ALIGN_BYTES // params.itemsize))
        self._client: Worker | None = None
        self._transport: MpiWorkerTransport | MpiServerTransport | None = None
        self._alarm: Alarm | None = None
        self._waiter = Waiter(crowded=False)
        self._shard = partial(
            Shard, rule=behind, schedule=schedule, segment=segment, clip_norm=clip, reduction_factor=reduction_factor
        )
        self._peers = partial(
            RunContext,
            mesh=mesh,
            params=params,
            optimizer=OptimizerOptions(rule, schedule, clip_norm, reduction_factor),
            metrics=metrics,
            compression=compression,
            collectives=Communicator,
            accumulate=accumulate,
        )

    @property
    def is_server(self) -> bool:
        """Whether this rank serves; False inside the body, which servers skip."""
        return self.mesh.role == "server"

    @property
    def params(self) -> Vector:
        """The parameters to compute with: the caller's vector, but with hogwild, inside the block, the node's own.

        On a server, inside the block, it ends the block's body.
        """
        if self._skipping:
            raise _WorkersOnly
        if self._client is not None:
            return self._client.params
        return self._params if self._far is None else self._far

    @property
    def evaluated_params(self) -> Vector:
        """What to evaluate while training runs: `params`, but with easgd the centre. Others may be changing it."""
        client = self._only_on_workers()
        chosen: Vector = getattr(client, "evaluated_params", client.params)
        return chosen

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
        client, saver = self._only_on_workers(), self._saver
        if type(samples) is not int or samples < 0:
            samples = whole_number("step: samples", samples)
        saver.check()
        if wanted := saver.wish.fresh():
            client.checkpoint.ask(wanted == SAVE_AND_STOP)
        client.step(samples, loss)
        saver.clock += 1
        if client.checkpoint.reached:
            self._save(client)

    def save(self, stop: bool = False) -> None:
        """Asks for a checkpoint soon: all save after the same step, this rank's next or a later one. Does not block.

        Args:
            stop: all workers' `stop` is true after it, and `leaving`.
        """
        self._only_on_workers()
        self._saver.wish.ask(stop)

    def _save(self, client: Worker) -> None:
        """This worker stands at a checkpoint, in a step or while it waits for the others at its end."""
        checkpoint = client.checkpoint
        self.leaving = self.leaving or checkpoint.stopping
        self._saver.save(checkpoint.step, checkpoint.stopping, client.state)

    @property
    def clock(self) -> int:
        """This worker's calls of `step`, those before the checkpoint that the run goes on from included."""
        self._only_on_workers()
        return self._saver.clock

    @property
    def resumed_from(self) -> Checkpoint | None:
        """The checkpoint that the run goes on from, or None. `resumed_from.manifest` has its samples and steps."""
        return self._saver.found

    @property
    def checkpoint(self) -> Path | None:
        """On rank 0 the newest complete checkpoint; None elsewhere, and where there is none."""
        return self._saver.path

    @property
    def extra(self) -> dict[str, Any]:
        """What this worker saves beside: numbers, texts, lists of them, arrays. After resuming, what it had saved."""
        self._only_on_workers()
        return self._saver.extra

    def overlap(self, samples: int) -> Callable[[range], None] | None:
        """Where pushing can begin while the backward pass still runs: a function to be told of each final range.

        Call it before each gradient, hand what it returns to the backward pass (`model.gradient(..., on_ready=...)`),
        then call `step` with the same samples. The ranges are those of `grads` and come from its end to its start.

        Returns:
            None where the strategy has no use for it.
        """
        return self._only_on_workers().overlap(samples)

    def report(self, accuracy: float, loss: float) -> None:
        """Tells server 0 of an evaluation of `params` (for the log, and to stop at a target)."""
        self._only_on_workers().report(accuracy, loss)

    def _only_on_workers(self) -> Worker:
        if self._skipping:
            raise _WorkersOnly
        if self._client is None:
            raise UsageError("psgd.connect: this works inside its `with` block only: with psgd.connect(...) as ps: ...")
        return self._client

    def __enter__(self) -> "Connection":
        mesh, params = self.mesh, self._params
        if mesh.servers == 0 and mesh.workers > 1:
            self._meet()
            return self
        if mesh.servers == 0:
            shard = self._shard(params, segment=params.size) if on_device(params) else self._shard(params)
            try:
                self._go(LocalWorker(shard, np.zeros_like(params), self.metrics))
            except BaseException:
                self._client = None
                self._end(failed=True)
                raise
            return self
        small = self._compression is not None
        grads = apart(mesh, params.size, params.dtype) if small else allocate(mesh, params.size, params.dtype)
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

    def _meet(self) -> None:
        mesh = self.mesh
        self._alarm = Alarm(mesh.world, [rank for rank in range(mesh.workers) if rank != mesh.index], mesh.index)
        BACKGROUND.add(self._alarm)
        try:
            self._go(self._strategy(self._peers(alarm=self._alarm)))
        except BaseException:
            self._client = None
            self._end(failed=True)
            raise

    def _begin(self, grads: Vector, reached: list[bool]) -> None:
        mesh, params, compression = self.mesh, self._params, self._compression
        if compression is not None:
            from psgd.worker.compressed_push_pull import join

            self._transport, client = join(
                mesh, params, grads, self._shards, compression, self._clip_norm, self._segment, self._waiter
            )
            self._go(client)
            return
        self._transport = transport = MpiWorkerTransport(
            mesh, params, grads, self._shards, reached=reached, segment=self._segment, waiter=self._waiter
        )
        self._go(PushPullWorker(transport, params, grads, first=mesh.index == 0))

    def _go(self, client: Worker) -> None:
        """Starts a worker, or takes up what it had saved."""
        saver = self._saver
        if self._far is not None:
            from psgd.worker.staged import Staged

            client = Staged(client, self._far)
        if self._accumulate > 1 and not client.accumulates:
            client = AccumulatingWorker(client, self._accumulate)
        self._client, client.checkpoint.on_reached = client, partial(self._save, client)
        client.checkpoint.every = saver.every
        if saver.found is not None:
            with saver.found.explained():
                lost = client.restore(*saver.states())
            for line in lost:
                if self.mesh.index == 0:
                    say(f"warning: resume: {line}")
        client.start()
        if self.mesh.servers == 0:
            saver.recount()

    def _serve(self, grads: Gradients) -> None:
        mesh, part = self.mesh, self._shards[self.mesh.index]
        shard = self._shard(
            self._params[part.start : part.stop],
            sum_over_shards=self._sum_over_servers,
        )
        follows = mesh.index > 0 and not self._strategy.fixed_order
        if self._compression is None:
            views = [None if whole is None else whole[part.start : part.stop] for whole in grads.workers]
            transport = MpiServerTransport(
                mesh, shard.params, shard.ranges, grads=views, waiter=self._waiter, follows=follows
            )
        else:
            from psgd.server.compressed_server_transport import CompressedServerTransport

            transport = CompressedServerTransport(
                mesh, shard.params, shard.ranges, compression=self._compression, waiter=self._waiter, follows=follows
            )
        self._transport = transport
        self.leaving = serve(
            mesh, shard, part, self._params.size, transport, self._strategy, self.metrics, self._scale, self._saver
        )
        if isinstance(self._strategy, Recorder):
            self._strategy.close()

    def _end(self, failed: bool) -> None:
        """Ends this rank's part: rings the alarm if it failed, and takes back every request.

        After a failure the communicators are not freed: a late message would meet whoever gets their number next.
        """
        transport, self._transport = self._transport, None
        try:
            if failed and self._alarm is not None:
                self._alarm.ring()
            self._saver.close(failed)
            if transport is not None:
                self.bytes_sent, self.bytes_received = transport.bytes_sent, transport.bytes_received
                transport.close()
            if self._alarm is not None:
                BACKGROUND.discard(self._alarm)
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
                self.bytes_sent, self.bytes_received = client.bytes_sent, client.bytes_received
        except BaseException:
            self._end(failed=True)
            raise
        self._end(failed=kind is not None)
        return False
