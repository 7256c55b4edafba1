"""Persistent requests: collectives whose arguments are bound once, to be started often."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from psgd.collectives.dispatch.nonblocking import Request, RequestQueue
from psgd.collectives.dispatch.planner import CallPlan
from psgd.collectives.fastpath.prepared import PreparedCall
from psgd.collectives.shm import layout
from psgd.kernels.errors import UsageError

_SPINS = 40  # of a start, about 1 us: to wait for a rank that is nearly here costs less than to come back for it


class Prequest:
    """A collective that is bound to its buffers and can be started again and again.

    It is made by a Communicator's `..._init` verbs, on all ranks. Its buffers are psgd's from each start to the end of
    that call; between calls they may be read and written. All ranks start their persistent and other non-blocking calls
    in the same order. Works as a context manager that frees it.
    """

    def __init__(
        self,
        queue: RequestQueue,
        plans: Callable[[], CallPlan],
        prepared: PreparedCall | None,
        check: Callable[[], None],
        in_memory: bool,
    ) -> None:
        self._queue = queue
        self._in_memory = in_memory
        self._plans = plans
        self._job: Any = None  # of the last start: what it worked on, of a device call
        self._made: Any = None  # its kernel, to be started again
        self._on_stream = False
        self._prepared = prepared
        self._check_usable = check
        self._failures = queue.engine.failures
        self._active = False
        self._freed = False
        self._request: Request | None = None

    def Start(self) -> None:
        """Starts the call. Does not block.

        Raises:
            UsageError: it is under way, or was freed.
        """
        self._check()
        prepared, queue = self._prepared, self._queue
        if prepared is None:
            plan = self._plans()
            self._job = None if plan.call is None else plan.call.job
            if self._job is not None:
                self._job.repeats = self._made is None
            self._on_stream = False
            self._request = queue.start(plan.steps(queue.engine), self._in_memory)
        elif queue.threaded or queue.busy:
            self._request = queue.start(prepared.steps(), in_memory=True)
        else:
            self._request = None
            try:
                if prepared.begin(_SPINS) != layout.DONE:
                    self._request = Request(queue, prepared.after(), prepared.look, in_memory=True)
                    queue.adopt(self._request, not prepared.one_turn)
            except BaseException as error:
                self._failures.abandon(error)
                raise
        self._active = True

    def Enqueue(self) -> bool:
        """Puts a call of device arrays on CuPy's current stream: work put there afterwards sees the result.

        Does not block. `Wait` need not follow; where it does, on all ranks or none, it blocks until all calls that the
        communicator has put on streams are done, and raises if they were ended. All ranks choose between `Start` and
        `Enqueue` for themselves.

        Returns:
            False where nothing was done: `Start` it. So it is until it has been started and waited for, with other
            calls under way, and where GPUs are not peers.

        Raises:
            UsageError: it is under way, or was freed.
        """
        self._check()
        engine = self._queue.engine
        if self._made is None or self._queue.busy or engine.ways is None:
            return False
        import cupy

        self._on_stream = bool(engine.ways.put(self._made, cupy.cuda.get_current_stream().ptr))
        return self._on_stream

    def Test(self) -> bool:
        """Whether the call is done, or was never started. Does not block, and makes progress.

        Raises:
            Error: what the blocking call would have raised.
            UsageError: it was freed.
        """
        return self._end(Request.Test)

    def Wait(self) -> bool:
        """Blocks until the call is done; returns True, at once where it was never started.

        Raises:
            Error: what the blocking call would have raised.
            UsageError: it was freed.
        """
        if self._on_stream and self._request is None:
            self._on_stream = False
            self._request = self._queue.start(self._queue.engine.ways.settled(self._made))
        request = self._request
        if request is not None and self._queue.advance_one(request):
            return self._end(Request.Test)
        return self._end(Request.Wait)

    def run(self) -> None:
        """Starts the call and waits for it: the fastest way, for loops that have nothing to do meanwhile. Blocks.

        Raises:
            Error: what the blocking call would have raised.
            UsageError: it is under way, or was freed.
        """
        prepared = self._prepared
        if prepared is None or self._active or self._freed or self._failures.broken or self._queue.busy:
            self.Start()
            self.Wait()
            return
        prepared.run()

    def Free(self) -> None:
        """Lets go of the buffers. Does nothing the second time. Not collective.

        Raises:
            UsageError: a call is under way.
        """
        if self._active:
            raise UsageError("Free: expected a persistent request that is not active; call Wait first")
        self._freed = True
        self._prepared = self._request = self._job = self._made = None
        self._on_stream = False

    @staticmethod
    def Startall(requests: "Sequence[Prequest]") -> None:
        """Starts several requests, in their order."""
        for request in requests:
            request.Start()

    @staticmethod
    def Waitall(requests: "Sequence[Prequest]") -> bool:
        """Waits for several requests."""
        for request in requests:
            request.Wait()
        return True

    @property
    def last(self) -> tuple[str, str]:
        """Algorithm and transport of the last call of this kind on the communicator."""
        return self._queue.engine.last

    def __enter__(self) -> "Prequest":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.Free()

    def _end(self, look: Callable[[Request], bool]) -> bool:
        if self._request is None:
            if self._freed:
                raise _freed()
            self._active = False
            return True
        try:
            done = look(self._request)
        finally:
            if self._request.finished.is_set():  # with or without an error
                self._active, self._request = False, None
                if self._job is not None:
                    self._made = self._made or self._job.made
                    self._job.made = self._job = None
        return done

    def _check(self) -> None:
        if self._freed:
            raise _freed()
        if self._active:
            raise UsageError("Start: expected a persistent request that is not active; call Wait first")
        if self._failures.broken:
            self._check_usable()
            self._failures.check()


def prepare(queue: RequestQueue, plan: Callable[[], CallPlan], check: Callable[[], None]) -> Prequest:
    """Makes a persistent request, once all ranks agree on it. Collective, blocks.

    Args:
        queue: of the communicator.
        plan: parses the arguments, and may do so again for each start.
        check: raises where the communicator was freed.

    Raises:
        AgreedError: ranks disagree or some rank's arguments are wrong.
    """
    engine = queue.engine
    first = plan()
    prepared: PreparedCall | None = None
    try:
        prepared = PreparedCall(engine, first) if first.repeats(engine) else None
    except Exception as error:  # no memory: the other ranks must know of it
        first = CallPlan(first.verb, None, f"{first.verb}: {error!r}")
    queue.start(first.agreement(engine)).Wait()
    again = first.call is None or first.call.copied or first.call.job is not None
    return Prequest(queue, lambda: plan() if again else first, prepared, check, first.in_memory(engine))


def _freed() -> UsageError:
    return UsageError("this persistent request was freed; create a new one")
