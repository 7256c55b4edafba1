"""A thread that carries on what nobody tests: requests of a rank that is inside an MPI call of its own.

Other ranks may need its part before they come to what that call waits for, so MPI promises progress there. The thread
sleeps while no request is under way. Else it looks up now and then, and where nobody has tested or waited since it did
so last, it takes over until somebody does. That costs a start or a test no more than a look at one attribute.
"""

import atexit
import threading
import time
import weakref
from typing import Protocol

_TICK_S = 0.01
_SHORTEST_S, _LONGEST_S = 0.0002, 0.005  # between two turns once it has taken over
_IDLE_TICKS = 50  # without a request, before it sleeps until it is woken


class Pending(Protocol):
    """What it carries on: a queue of requests.

    Attributes:
        busy: a request is under way.
        untouched: set by the thread; whoever else advances the queue takes it back.
    """

    untouched: bool

    @property
    def busy(self) -> bool: ...

    def relieve(self) -> None:
        """Does what can be done now."""


class Relief:
    """The thread, started with the first queue that needs it.

    Attributes:
        asleep: it must be woken once a request is under way.
    """

    def __init__(self) -> None:
        self.asleep = True
        self._queues: weakref.WeakSet[Pending] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._awake = threading.Event()
        self._thread: threading.Thread | None = None
        self._ended = False

    def add(self, queue: Pending) -> None:
        """Carries on a queue's requests from now on; it is not kept alive."""
        with self._lock:
            self._queues.add(queue)

    def wake(self) -> None:
        """Has it look up from now on."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="psgd-relief", daemon=True)
            self._thread.start()
            atexit.register(self._end)  # before MPI is finalized, which mpi4py does after all of these
        self.asleep = False
        self._awake.set()

    def _end(self) -> None:
        self._ended = True
        self._awake.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def _serve(self) -> None:
        idle, pause_s = 0, _SHORTEST_S
        while not self._ended:
            busy, relieved = self._look()
            idle = 0 if busy else idle + 1
            if idle > _IDLE_TICKS:
                self._sleep()
                idle = 0
            time.sleep(pause_s if relieved else _TICK_S)
            # Where it has taken over: often at first, and less and less often while nobody else comes.
            pause_s = min(_LONGEST_S, 1.1 * pause_s) if relieved else _SHORTEST_S

    def _look(self) -> tuple[bool, bool]:
        """Looks up: whether a request is under way, and whether nobody but this thread cares."""
        busy = [queue for queue in self._all() if queue.busy]
        relieved = bool(busy) and all(queue.untouched for queue in busy)  # who tests one advances all
        for queue in busy:
            if relieved:
                queue.relieve()
            queue.untouched = True  # also where this thread's own turns have taken it back
        return bool(busy), relieved

    def _sleep(self) -> None:
        self._awake.clear()
        self.asleep = True
        if not self._ended and not any(
            queue.busy for queue in self._all()
        ):  # whoever starts a request later sees `asleep`
            self._awake.wait()
        self.asleep = False

    def _all(self) -> list[Pending]:
        with self._lock:
            return list(self._queues)


RELIEF = Relief()
"""The one of this process."""
