"""Non-blocking collectives: requests, and what carries them forward.

Requests of one communicator are carried out one after the other, in the order in which they were started. Where MPI
grants threads (MPI_THREAD_MULTIPLE) and this rank has a core to spare, a thread does it while the caller computes;
otherwise each Test and Wait does what can be done at that moment. PSGD_PROGRESS=1 or 0 decides it otherwise.
"""

import threading
from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue

from mpi4py import MPI

from psgd.collectives.dispatch.engine import Engine
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

    def __init__(self, queue: "RequestQueue", steps: Steps, test: Test | None = None) -> None:
        self._queue = queue
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
            raise self.error
        return self.finished.is_set()


class RequestQueue:
    """The requests of one communicator, oldest first.

    Args:
        engine: carries them out.
        threaded: by a thread, where MPI grants that.
    """

    def __init__(self, engine: Engine, threaded: bool) -> None:
        self.engine = engine
        self.threaded = threaded and engine.size > 1 and MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self._waiter = Waiter(engine.waiter.crowded)  # without a watch: advance() has the engine's
        self._advancing = False
        self._pending: deque[Request] = deque()
        self._given: SimpleQueue[Request | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        if self.threaded:
            engine.share_the_interpreter(_THREAD_SPINS)

    @property
    def busy(self) -> bool:
        """Whether a request is under way."""
        return bool(self._pending)

    def start(self, steps: Steps) -> Request:
        """Takes a call on. Does not block."""
        request = Request(self, steps)
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

    def advance_one(self, request: Request) -> bool:
        """Does what can be done for a request if it is the oldest, and nothing else; whether that was the rest of it.

        Without a look at other communicators' requests: for a caller that makes one if this was not enough.
        """
        if self.threaded or self._advancing or not self._pending or self._pending[0] is not request:
            return False
        self._advancing = True
        try:
            if not self._step(request):
                return False
            self._pending.popleft()
            return True
        finally:
            self._advancing = False

    def advance(self) -> None:
        """Does what can be done now, unless a thread does it."""
        if self.threaded or self._advancing or not self._pending:  # within its own step, or in another thread's
            return
        self._advancing = True
        try:
            while self._pending and self._step(self._pending[0]):
                self._pending.popleft()
            if not self._pending:
                BACKGROUND.discard(self)
                if self._pending:  # another thread has started one meanwhile
                    BACKGROUND.add(self)
        finally:
            self._advancing = False

    def wait(self, request: Request) -> None:
        """Blocks until a request is done."""
        finished = request.finished
        if isinstance(finished, threading.Event):
            while not finished.wait(_TICK_S):
                pass  # signals get their turn
            return

        def done() -> bool:
            self.advance()
            BACKGROUND.advance()  # another rank may wait for those first
            return request.finished.is_set()

        self._waiter.soon(done)

    def close(self) -> None:
        """Waits for all requests, ends the thread and frees the engine. Collective."""
        for request in list(self._pending):
            self.wait(request)
        if self._thread is not None:
            self._given.put(None)
            self._thread.join()
        self.engine.free()

    def _step(self, request: Request) -> bool:
        """Advances one request as far as it goes; True once it is done, with or without an error."""
        try:
            if not request.started:
                request.started = True
                self.engine.begin()
                request.test = next(request.steps, None)
            while request.test is not None:
                if not request.test():
                    self.engine.watchdog()
                    if not request.test():
                        return False
                request.test = next(request.steps, None)
        except BaseException as error:
            request.error = self.engine.failures.ended(request.steps, error)
        request.finished.set()
        return True

    def _serve(self) -> None:
        while (request := self._given.get()) is not None:
            try:
                self.engine.run(request.steps)
            except BaseException as error:
                request.error = error
            request.finished.set()
            self._pending.popleft()
