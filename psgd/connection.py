"""What `psgd.connect` gives: a rank's part of a run, as a context manager."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint.folder import Checkpoint
from psgd.checkpoint.requests import SAVE_AND_STOP
from psgd.checkpoint.saver import Saver
from psgd.compression.options import Compression
from psgd.kernels.errors import UsageError
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim.optimizer import OptimizerOptions
from psgd.runtime.mesh import Mesh
from psgd.runtime.option import whole_number
from psgd.server.context import PushPullContext
from psgd.server.serve import Serving
from psgd.server.transports.gradient_memory import allocate, apart
from psgd.teardown import Teardown
from psgd.worker import starter
from psgd.worker.accumulation import AccumulatingWorker
from psgd.worker.bound_model import BoundModel, settle
from psgd.worker.checkpoint_status import nobody_saves
from psgd.worker.context import Alone, RunContext
from psgd.worker.gradient_watch import GradientWatch
from psgd.worker.interface import Worker

Vector = NDArray[np.floating]


class _WorkersOnly(BaseException):
    """Ends the body of a `with` block on a server.

    Python cannot skip such a body. So a server, which has served all the run inside `__enter__`, enters it, and the
    first use of something that only workers have raises this. `__exit__` swallows it. It is no Exception, so that no
    `except Exception` of the body catches it.
    """


@dataclass(frozen=True)
class RunOptions:
    """What a run does, checked, and the same on all ranks.

    Attributes:
        strategy: a `psgd.server.policy.Policy`; without servers, a function from `RunContext` to a `Worker`.
        optimizer: rule, schedule, clipping.
        segment: elements of a large shard that travel in a message.
        scale: what a contribution of that staleness is multiplied by; None is 1.
        compression: how updates are compressed, or None.
        staged: parameters lie on a GPU, and the strategy works on the host.
        accumulate: steps of a worker whose gradients make one update.
        on_nan: what a gradient that is not finite does.
        leaves_out: the strategy omits one in any case.
        updates: `psgd.optim.host_updates.HostUpdates` that take a single rank's steps, or None.
    """

    strategy: Any
    optimizer: OptimizerOptions
    segment: int
    scale: Callable[[int], float] | None = None
    compression: Compression | None = None
    staged: bool = False
    accumulate: int = 1
    on_nan: str = "warn"
    leaves_out: bool = False
    updates: Any = None


NO_LOSS = float("nan")


class Connection:
    """What `psgd.connect` gives: a context manager; inside it, the worker's handle.

    Args:
        mesh: the ranks by role.
        params: the caller's vector.
        options: of the run.
        metrics: counters.
        saver: of this rank.
        model: whose vector it is, where it is a model's.

    Attributes:
        mesh: the ranks by role.
        workers, servers: how many there are.
        metrics: counters; filled on server 0.
        leaving: whether the run was asked to save and stop, and has done so.
    """

    def __init__(
        self,
        mesh: Mesh,
        params: Vector,
        options: RunOptions,
        metrics: RunMetrics,
        saver: Saver,
        model: BoundModel | None = None,
    ) -> None:
        self.mesh, self.metrics = mesh, metrics
        self.workers, self.servers = mesh.workers, mesh.servers
        self.leaving = False
        self._given = self._params = params  # the caller's, and what the strategy works on
        if options.staged:
            from psgd.worker.staged import host_copy

            self._params = host_copy(params)
        self._options, self._saver, self._saves = options, saver, saver.active
        self._model = model
        self._teardown = Teardown(mesh, saver)
        self._watch = GradientWatch(options.on_nan, mesh.world.Get_rank(), mesh.index, options.leaves_out)
        self._overlapped = False  # parts of this step's gradient are on their way
        self._client: Worker | None = None  # inside the block
        self._skipping = False  # inside the block, on a server

    @property
    def is_server(self) -> bool:
        """Whether this rank is a server. Known before, in and after the block."""
        return self.mesh.role == "server"

    @property
    def is_worker(self) -> bool:
        """Whether this rank is a worker, as every rank is that is not a server."""
        return not self.is_server

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the one to write files and print: a server, or without servers worker 0."""
        return self.mesh.index == 0 and (self.is_server or self.servers == 0)

    @property
    def params(self) -> Vector:
        """The parameters to compute with: the caller's vector, but with hogwild, inside the block, the node's own.

        After the block, the final ones, whole on every rank. On a server, inside the block, it ends the block's body.
        """
        if self._skipping:
            raise _WorkersOnly
        return self._given if self._client is None else self._client.params

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
        """Whether the server asks to stop early."""
        return self._only_on_workers().stop

    @property
    def waited_s(self) -> float:
        """Seconds this worker has spent in `step`."""
        return self._only_on_workers().waited_s

    @property
    def bytes_sent(self) -> int:
        """Bytes that this rank has sent, including headers; known after the block."""
        return self._teardown.bytes_sent

    @property
    def bytes_received(self) -> int:
        """Bytes that this rank has received, including headers; known after the block."""
        return self._teardown.bytes_received

    @property
    def clock(self) -> int:
        """This worker's number of calls of `step`, including those before the checkpoint that it resumed from."""
        self._only_on_workers()
        return self._saver.clock

    @property
    def resumed_from(self) -> Checkpoint | None:
        """The checkpoint that the run resumes from, or None. `resumed_from.manifest` has its samples and steps."""
        return self._saver.found

    @property
    def checkpoint(self) -> Path | None:
        """On rank 0 the newest complete checkpoint, None if there is none yet; None on other ranks."""
        return self._saver.path

    def lead(self) -> None:
        """This rank goes on with what rank 0 has done, which has died: `checkpoint` is known here from now on."""
        self._saver.lead()

    def tidy(self) -> None:
        """Removes checkpoints that deaths left incomplete. On one rank, once all that live are out of the block."""
        self._saver.tidy()

    @property
    def extra(self) -> dict[str, Any]:
        """What else this worker saves: numbers, strings, lists and dicts of them, arrays. Restored on resuming."""
        self._only_on_workers()
        return self._saver.extra

    @property
    def skipped(self) -> int:
        """How many gradients of this rank were omitted because they were not finite (`on_nan="skip"`)."""
        return self._watch.skipped

    def step(self, samples: int = 1, loss: float = NO_LOSS) -> None:
        """Pushes `grads`, the mean gradient over `samples`, and pulls `params`. Blocks until this worker may continue.

        Args:
            samples: weight of this gradient in its group's mean; 0 sends none and only keeps pace.
            loss: mean loss over the samples, for the log.

        Raises:
            UsageError: samples is not a whole number of 0 or more, or this is outside the `with` block.
            PeerLostError: another worker left the block with an error.
            DivergedError: a gradient is not finite, and `on_nan` is "stop"; on all ranks.
        """
        client, saver, watch = self._client, self._saver, self._watch
        if client is None:
            client = self._only_on_workers()
        if type(samples) is not int or samples < 0:
            samples = whole_number("step: samples", samples)
        if self._saves or saver.request.level:
            saver.check()
            if wanted := saver.unsent():
                client.checkpoint.ask(wanted == SAVE_AND_STOP)
        if samples:
            if self._model is not None:
                self._model.gather()
            wrong = loss != loss and loss is not NO_LOSS  # noqa: PLR0124 -- does not wait for one on a GPU
            left_out = self._model is not None and self._model.spoiled
            if wrong or not (left_out or watch.looks_well(client, saver.clock, self._overlapped)):
                samples = watch.found(client.params, saver.clock + 1, samples)
        self._overlapped = False
        client.step(samples, loss)
        if self._model is not None:
            self._model.scatter()
        saver.clock += 1
        if client.checkpoint.reached:
            self._save(client)

    def save(self, stop: bool = False) -> None:
        """Requests a checkpoint: all ranks save after the same step, this rank's next or a later one. Does not block.

        Args:
            stop: also end the run: `stop` and `leaving` are then true on all workers.
        """
        self._only_on_workers()
        self._saver.request.ask(stop)

    def overlap(self, samples: int) -> Callable[[range], None] | None:
        """Returns a function to call with each final range of the gradient, to push it while the backward pass runs.

        Call it before each gradient, hand what it returns to the backward pass (`model.gradient(..., on_ready=...)`),
        then call `step` with the same samples. The ranges are those of `grads` and come from its end to its start.
        A wrapped module's backward pass calls it by itself: only call `overlap` before it.

        Returns:
            The function; None if the strategy has no use for it, or if gradients are checked first (`on_nan`).
        """
        client = self._only_on_workers()
        if self._watch.acts and not getattr(client, "drops_rounds", False):
            return None
        ready = client.overlap(samples)
        self._overlapped = ready is not None
        if ready is not None:
            ready = self._watch.overlapping(ready, client.grads, self._saver.clock, getattr(client, "unit_grads", None))
            if self._model is not None:
                self._model.announce(ready)
        return ready

    def report(self, accuracy: float, loss: float) -> None:
        """Reports an evaluation of `params` to server 0 (for the log, and to stop at a target)."""
        self._only_on_workers().report(accuracy, loss)

    def _only_on_workers(self) -> Worker:
        if self._skipping:
            raise _WorkersOnly
        if self._client is None:
            raise UsageError("this works inside the `with` block only: with psgd.connect(...), or the optimizer, as ps")
        return self._client

    def _save(self, client: Worker) -> None:
        """This worker stands at a checkpoint, in a step or while it waits for the others at its end."""
        checkpoint = client.checkpoint
        self.leaving = self.leaving or checkpoint.stopping
        if self._model is not None:
            self._saver.extra |= self._model.kept()
        self._saver.save(checkpoint.step, checkpoint.stopping, client.state)

    def __enter__(self) -> "Connection":
        mesh, options = self.mesh, self._options
        try:
            if mesh.servers:
                self._enter_with_servers()
            elif mesh.workers == 1 and not isinstance(options.strategy, Alone):
                make, params = starter.create_local, self._params
                self._watch.begin(self._given)
                self._begin(make(params, options.optimizer, options.segment, self.metrics, options.updates))
            else:
                alarm = self._teardown.listen()
                common = mesh, self._params, options.optimizer, self.metrics, options.compression
                context = RunContext(*common, alarm, options.accumulate)
                self._watch.begin(self._given)
                self._begin(options.strategy(context))
        except BaseException as error:
            self._client = None
            self._leave_vectors()
            self._teardown.end(error)
            raise
        return self

    def _enter_with_servers(self) -> None:
        """Serves the whole run, or starts a worker."""
        mesh, params, options = self.mesh, self._params, self._options
        memory = allocate if options.compression is None else apart
        gradients = memory(mesh, params.size, params.dtype)
        self._teardown.listen()
        context = PushPullContext(
            mesh, params, options.optimizer, self.metrics, self._teardown.waiter(), options.segment, options.compression
        )
        if gradients.own is None:
            serving = Serving(context, options.strategy, options.scale, gradients.workers, self._saver)
            self._teardown.transport = serving.transport
            self.leaving = self._serve(serving)
            if self._model is not None:
                settle(self._model, mesh, self._teardown.wait, None)
            self._skipping = True
        else:
            self._watch.begin(self._given)  # compiles, so before the clock starts
            client = starter.create_push_pull(context, gradients)
            self._teardown.transport = client.transport
            self._begin(client)

    def _serve(self, serving: Serving) -> bool:
        return serving.run()

    def _begin(self, client: Worker) -> None:
        if self._given is not self._params:
            from psgd.worker.staged import Staged

            client = Staged(client, self._given, self._options.updates is not None)
        if self._options.accumulate > 1 and not client.accumulates:
            client = AccumulatingWorker(client, self._options.accumulate, self.mesh.survival)
        self._client, client.checkpoint.on_reached = client, partial(self._save, client)
        starter.start(client, self._saver, self.mesh)
        if self.mesh.servers == 0:
            self._saver.recount()
        if self._model is not None:
            self._model.bind(client.params, client.grads)
            assert self.mesh.data is not None  # this is a worker
            self._model.begin(self.mesh.data, self._teardown.wait, self._saver.extra | self._saver.others)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        client, skipping = self._client, self._skipping
        self._client, self._skipping = None, False
        if client is None:
            self._teardown.end(None)
            return skipping and kind is _WorkersOnly
        try:
            if kind is None:
                client.finish()
                if self._model is not None:
                    settle(self._model, self.mesh, self._teardown.wait, self._saver.clock)
                self._teardown.bytes_sent, self._teardown.bytes_received = client.bytes_sent, client.bytes_received
        except BaseException as failure:
            self._leave_vectors()
            self._teardown.end(failure)
            raise
        finally:  # it refers to the worker, whose memory is to go with the last reference to it
            client.checkpoint.on_reached = nobody_saves
        if error is not None:
            self._leave_vectors()
        self._teardown.end(error)
        return False

    def _leave_vectors(self) -> None:
        """After an error: the model must not keep views of memory that goes with the connection."""
        if self._model is not None:
            self._model.unbind()
