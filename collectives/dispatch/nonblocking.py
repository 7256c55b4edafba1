"""Non-blocking collectives: requests, and what carries them forward.

Requests of one communicator are carried out one after the other, in the order in which they were started. Where MPI
grants threads (MPI_THREAD_MULTIPLE) and this rank has a core to spare, a thread does it while the caller computes;
otherwise each Test and Wait does what can be done at that moment, and a thread that sleeps meanwhile does it while the
rank is inside an MPI call of its own (`relief`). PSGD_PROGRESS=1 or 0 decides it otherwise.
"""

import threading
from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue

from mpi4py import MPI

from psgd.collectives.dispatch.engine import Engine
from psgd.collectives.dispatch.relief import RELIEF
from psgd.collectives.mpi.wait import Steps, Test, Waiter
from psgd.collectives.mpi.watchdog import BACKGROUND

_THREAD_SPINS = 20_000  # about 0.5 ms: a thread that looks up rarely leaves Python to the caller
_TICK_S = 0.1


class Done:
    """Stands for a `threading.Event` where no other thread sets it: that takes a microsecond to make."""

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Sets it."""
        self._is_set = True


class Request:
    """A collective that is under way. Its buffers are psgd's until it is done."""

    def __init__(self, queue: "RequestQueue", steps: Steps, test: Test | None = None, in_memory: bool = False) -> None:
        self._queue = queue
        self.in_memory = in_memory  # its steps call no MPI
        self.steps = steps
        self.test = test
        self.started = test is not None
        self.error: BaseException | None = None
        self.finished: threading.Event | Done = threading.Event() if queue.threaded else Done()

    def Test(self) -> bool:
        """Whether it is done. Does not block, and makes progress.

        Raises:
            Error: what the blocking call would have raised.
        """
        if not self.finished.is_set():
            self._queue.advance()
        return self._ended()

    def Wait(self) -> bool:
        """Blocks until it is done; returns True.

        Raises:
            Error: what the blocking call would have raised.
        """
        self._queue.wait(self)
        return self._ended()

    @staticmethod
    def Waitall(requests: Sequence["Request"]) -> bool:
        """Waits for several requests of any communicators."""
        for request in requests:
            request.Wait()
        return True

    def _ended(self) -> bool:
        if self.error is not None:
            self._queue.engine.failures.untold = None
            raise self.error
        return self.finished.is_set()


class RequestQueue:
    """The requests of one communicator, oldest first.

    Args:
        engine: carries them out.
        threaded: by a thread, where MPI grants that.

    Attributes:
        untouched: nobody but `relief` has advanced it since that set this.
    """

    def __init__(self, engine: Engine, threaded: bool) -> None:
        self.engine = engine
        self.threaded = threaded and engine.size > 1 and MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self._waiter = Waiter(engine.waiter.crowded)  # without a watch: advance() has the engine's
        self._turn = threading.Lock()  # of who advances: within a step, and in another thread, nobody else may
        self._pending: deque[Request] = deque()
        self.untouched = False
        engine.started, engine.at_rest = self._count, self._at_rest
        engine.watchdog.blocked = False
        self._given: SimpleQueue[Request | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        if self.threaded:
            engine.share_the_interpreter(_THREAD_SPINS)
        self._relieved = not self.threaded and engine.size > 1 and MPI.Query_thread() > MPI.THREAD_SINGLE
        if self._relieved:
            RELIEF.add(self)

    @property
    def busy(self) -> bool:
        """Whether a request is under way."""
        return bool(self._pending)

    def start(self, steps: Steps, in_memory: bool = False) -> Request:
        """Takes a call on. Does not block.

        Args:
            steps: of the call.
            in_memory: they call no MPI.
        """
        request = Request(self, steps, in_memory=in_memory)
        if self.threaded:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="psgd-progress", daemon=True)
                self._thread.start()
            self._pending.append(request)
            self._given.put(request)
        else:
            self._pending.append(request)
            BACKGROUND.add(self)
            self.advance()
            if self._relieved and RELIEF.asleep and self._pending:
                RELIEF.wake()
        return request

    def adopt(self, request: Request, awaited: bool) -> None:
        """Takes in a call whose kernel has had its first turn; no request is under way, and there is no thread.

        Args:
            request: with the test that gives the kernel its next turn.
            awaited: other ranks may wait for those turns, so that all waits of this process must give them.
        """
        self.engine.calls += 1
        self.engine.watchdog.begin(self.engine.calls)
        self._pending.append(request)
        if awaited:
            BACKGROUND.add(self)
            self.untouched = False
            if self._relieved and RELIEF.asleep:
                RELIEF.wake()

    def advance_one(self, request: Request) -> bool:
        """Does what can be done for a request if it is the oldest, and nothing else; whether that was the rest of it.

        Without a look at other communicators' requests: for a caller that makes one if this was not enough.
        """
        self.untouched = False
        if self.threaded or not self._turn.acquire(False):
            return False
        try:  # only whose turn it is may look at the oldest: another thread may be about to take it out
            if not self._pending or self._pending[0] is not request or not self._step(request):
                return False
            self._pending.popleft()
            return True
        finally:
            self._turn.release()

    def advance(self) -> None:
        """Does what can be done now, unless a thread does it."""
        self.untouched = False
        self._advance()

    def relieve(self) -> None:
        """As `advance`, for the thread of `relief`, which must not call MPI where that grants no threads."""
        if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            self._advance()
        else:
            self._advance(quietly=True)

    def _advance(self, quietly: bool = False) -> None:
        if self.threaded or not self._pending or not self._turn.acquire(False):
            return
        try:
            while self._pending and (self._pending[0].in_memory or not quietly):
                if not self._step(self._pending[0], quietly):
                    break
                self._pending.popleft()
            if not self._pending:
                BACKGROUND.discard(self)
                if self._pending:  # another thread has started one meanwhile
                    BACKGROUND.add(self)
        finally:
            self._turn.release()

    def _count(self) -> int:
        """Calls that were started, also those whose turn has not come."""
        return self.engine.calls + sum(not request.started for request in list(self._pending))

    def _at_rest(self) -> bool:
        self.advance()
        return not self._pending

    def wait(self, request: Request) -> None:
        """Blocks until a request is done."""
        finished, watchdog = request.finished, self.engine.watchdog
        watchdog.blocked = True
        try:
            if isinstance(finished, threading.Event):
                while not finished.wait(_TICK_S):
                    pass  # signals get their turn
                return

            def done() -> bool:
                self.advance()
                BACKGROUND.advance()  # another rank may wait for those first
                return request.finished.is_set()

            self._waiter.soon(done)
        finally:
            watchdog.blocked = False

    def close(self) -> None:
        """Waits for all requests, ends the thread and the engine's calls. Collective."""
        for request in list(self._pending):
            self.wait(request)
        if self._thread is not None:
            self._given.put(None)
            self._thread.join()
        self.engine.end()

    def _step(self, request: Request, quietly: bool = False) -> bool:
        """Advances one request as far as it goes; True once it is done, with or without an error.

        Args:
            request: the oldest.
            quietly: without a look at anything else, which would call MPI.
        """
        try:
            if not request.started:
                request.started = True
                self.engine.begin()
                request.test = next(request.steps, None)
            while request.test is not None:
                if not request.test():
                    if quietly:
                        return False
                    self.engine.watchdog()
                    if not request.test():
                        return False
                request.test = next(request.steps, None)
            self.engine.waits.done = True
        except BaseException as error:
            request.error = self.engine.failures.keep(self.engine.failures.ended(request.steps, error))
        request.finished.set()
        return True

    def _serve(self) -> None:
        while (request := self._given.get()) is not None:
            try:
                request.started = True
                self.engine.run(request.steps)
            except BaseException as error:
                request.error = self.engine.failures.keep(error)
            self._pending.popleft()  # first: who has waited for it finds the queue at rest
            request.finished.set()
