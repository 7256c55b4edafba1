"""The optimizer's step on a vector on the host, by parts and in threads, while its owner goes on.

A part is given to `submit` as soon as its gradient is there. Parts that wait are taken from the vector's front: those
of a model's first layers, which the next forward pass needs first. The rule works element by element, so the order
changes no bit.
"""

import heapq
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psgd.kernels.exact_squares import Limbs
from psgd.optim.catalog import RULES
from psgd.optim.optimizer import Optimizer

Vector = NDArray[np.floating]
MOST_THREADS = 16
PIECE, LONGEST = 1 << 18, 4
"""Elements that a thread takes at once: enough to hide the call, few enough that all threads end together. Of vectors
that have many for each thread, up to `LONGEST` times as many: each take is a moment in which the owner, who starts
kernels meanwhile, has to wait for the interpreter."""


class _Job:
    """A part with what its step goes by (None: its squares are summed), and how much of it is not done."""

    def __init__(self, part: range, step: tuple[float, float, int] | None) -> None:
        self.part, self.step, self.left = part, step, len(part)


class _Piece(NamedTuple):
    """What a thread takes; the heap orders by `start`, then `number`."""

    start: int
    number: int
    stop: int
    job: _Job


class _Work:
    """What threads and their owner share. The threads keep this alive, not the owner."""

    def __init__(self, optimizer: Optimizer, grads: Vector) -> None:
        self.optimizer, self.grads = optimizer, grads
        self.pieces: list[_Piece] = []
        self.jobs: list[_Job] = []
        self.lock = threading.Lock()
        self.more, self.done = (threading.Condition(self.lock) for _ in range(2))  # for threads, and for their owner
        self.on_done: Callable[[range], None] | None = None
        self.limbs: Limbs | None = None
        self.error: BaseException | None = None
        self.closed = False

    def serve(self) -> None:
        """One thread's life."""
        while (piece := self._next()) is not None:
            job = piece.job
            try:
                self._do(piece)
                with self.lock:
                    job.left -= piece.stop - piece.start
                    last = not job.left
                if last and self.on_done is not None and job.step is not None:
                    self.on_done(job.part)
            except BaseException as error:
                with self.lock:
                    self.error, self.closed = self.error or error, True
                    self.more.notify_all()
                    self.done.notify_all()
                return
            if last:
                with self.lock:
                    self.jobs.remove(job)
                    self.done.notify_all()

    def _next(self) -> _Piece | None:
        with self.lock:
            while not self.pieces and not self.closed:
                self.more.wait()
            return None if self.closed else heapq.heappop(self.pieces)

    def _do(self, piece: _Piece) -> None:
        mine, step, optimizer = slice(piece.start, piece.stop), piece.job.step, self.optimizer
        if step is not None:
            state = tuple(each[mine] for each in optimizer.state)
            optimizer.update(optimizer.params[mine], self.grads[mine], state, *step)
            return
        limbs = optimizer.options.digits(self.grads[mine], piece.start)
        with self.lock:
            self.limbs = limbs if self.limbs is None else self.limbs + limbs

    def close(self) -> None:
        """Ends the threads."""
        with self.lock:
            self.closed = True
            self.more.notify_all()


class HostUpdates:
    """Threads that take one worker's steps. All methods are for one thread, the worker's.

    Args:
        threads: how many; None: by the cores of this process, at most `MOST_THREADS`. A rule of the user's own, which
            may keep things between its calls, gets one.
        pinned: the gradient's vector is to be page-locked, since a GPU copies to it.

    Attributes:
        on_done: called in a thread with each part that has its new parameters, before `wait` knows of it.
        units: in which parts a whole vector is given, and waited for; None: pieces.
        followed: somebody asks `wait` before they read parameters, so that a step need not wait for all.
        settled: set by the worker where all parameters were waited for and the run could be resumed from them; whoever
            has copies that are behind takes new ones, and sets it back.
    """

    def __init__(self, threads: int | None = None, pinned: bool = False) -> None:
        self.on_done: Callable[[range], None] | None = None
        self.units: tuple[range, ...] | None = None
        self.followed = self.settled = False
        self.pinned = pinned
        self._threads, self._piece = threads, PIECE
        self._work: _Work | None = None
        self._numbers = itertools.count()
        self._end: Any = None

    def open(self, optimizer: Optimizer, grads: Vector) -> None:
        """Starts the threads.

        Args:
            optimizer: whose vector and state they update; nobody else does meanwhile.
            grads: of the same size, to be left alone from a part's `submit` until it is done.
        """
        self._work = work = _Work(optimizer, grads)
        work.on_done = self.on_done
        self._end = weakref.finalize(self, work.close)
        count = 1 if optimizer.options.rule.name not in RULES else self._threads or _cores()
        self._piece = max(PIECE, min(LONGEST * PIECE, grads.size // (8 * count)))
        for number in range(count):
            threading.Thread(target=work.serve, name=f"psgd-update-{number}", daemon=True).start()

    def parts(self, size: int) -> Iterable[range]:
        """The parts of a vector of so many elements."""
        piece = self._piece
        return self.units or (range(start, min(start + piece, size)) for start in range(0, size, piece))

    def submit(self, part: range, lr: float, scale: float, version: int) -> None:
        """Starts a step on this part. Blocks while an earlier one on it is not done.

        Args:
            part: of the vector, whose gradient is complete.
            lr: as the next two, as `psgd.optim.rules.Rule.update` takes it.
            scale: of the gradient.
            version: of the step, from 1.
        """
        self._start(part, (lr, scale, version))

    def add_squares(self, part: range) -> None:
        """Starts adding the squares of this part's gradient, for a norm that the steps go by."""
        self._start(part, None)

    def squares(self) -> Limbs:
        """The digits of the sum of all that was added since the last call. Blocks until it is."""
        self.wait()
        work = self._work
        assert work is not None and work.limbs is not None  # something was added
        found, work.limbs = work.limbs, None
        return found

    def _start(self, part: range, step: tuple[float, float, int] | None) -> None:
        self.wait(part)
        work = self._work
        assert work is not None  # `open` comes first
        job = _Job(part, step)
        pieces = [
            _Piece(start, next(self._numbers), min(start + self._piece, part.stop), job)
            for start in range(part.start, part.stop, self._piece)
        ]
        if not pieces:
            return
        with work.lock:
            work.jobs.append(job)
            for piece in pieces:
                heapq.heappush(work.pieces, piece)
            work.more.notify(len(pieces))

    def wait(self, part: range | None = None) -> None:
        """Returns when no step on any of these elements is under way; None: on any at all.

        Raises:
            Exception: what a thread has raised.
        """
        work = self._work
        if work is None:
            return
        with work.lock:
            while work.error is None and any(part is None or overlap(job.part, part) for job in work.jobs):
                work.done.wait()
            if work.error is not None:
                raise work.error

    def close(self) -> None:
        """Waits for all, and ends the threads."""
        self.wait()
        if self._end is not None:
            self._end()


def overlap(one: range, other: range) -> bool:
    """Whether they have an element in common."""
    return one.start < other.stop and other.start < one.stop


def _cores() -> int:
    """One core is left to whoever starts the work."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MOST_THREADS, cores - 1))
