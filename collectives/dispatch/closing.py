"""The end of a communicator's calls: no rank leaves before it has heard of a failure in any of them.

Over messages a rank may be done with a call that others fail in, as the root of a broadcast is, and hear of it in its
next call only. So there is one more call: in `free`, or where a program does not free its communicators, when it exits.
"""

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

from mpi4py import MPI

from psgd.collectives.algorithms import barrier
from psgd.collectives.algorithms.channel import Channel
from psgd.collectives.arguments import descriptor
from psgd.collectives.arguments.descriptor import Words
from psgd.collectives.dispatch.errors import Failures
from psgd.collectives.dispatch.waits import Waits
from psgd.collectives.mpi.wait import Steps, Test
from psgd.collectives.shm import layout
from psgd.kernels.errors import AgreedError, PeerLostError
from psgd.kernels.notice import say

PATIENCE_S = 5.0  # a rank that raised an error of its own may never come
_FORWARD_S = 0.3  # for mpiexec to forward the text


class Calls(Protocol):
    """The engine of one lane, as far as its end needs it."""

    channel: Channel
    descriptor: Words
    failures: Failures
    waits: Waits
    calls: int
    at_rest: Callable[[], bool]  # no request is under way; makes progress

    def run(self, steps: Steps) -> None:
        """Runs a call to its end."""


_open: list[Calls] = []
_owner = 0  # the process whose exit counts: a forked child has no part in this


def watch(engine: Calls) -> None:
    """Has the calls of an engine end at the program's exit, unless it is freed before."""
    global _owner
    if _owner != os.getpid():
        _owner = os.getpid()
        _open.clear()
        atexit.register(_at_exit)  # runs before MPI is finalized
    _open.append(engine)


def meet(engine: Calls, limit: float) -> bool:
    """Ends once all ranks have come here. Blocks.

    Args:
        engine: that has no call under way.
        limit: by the monotonic clock, for others to come.

    Returns:
        Whether they have; where not, messages may still arrive.

    Raises:
        AgreedError: ranks have disagreed on an earlier call, or some are in another one.
    """
    if engine in _open:
        _open.remove(engine)
    came: list[bool] = []
    try:
        engine.run(_steps(engine, limit, came))
    except PeerLostError:
        return False  # and its own error says why
    return bool(came)


def _steps(engine: Calls, limit: float, came: list[bool]) -> Steps:
    engine.failures.text = ""
    descriptor.fill(engine.descriptor, descriptor.signature("free"), 0, (), 0)
    engine.descriptor[layout.CALL] = engine.calls
    engine.channel.begin(engine.descriptor, engine.calls)
    for test in barrier.barrier(engine.channel):
        bounded = _Bounded(test, limit)
        yield bounded
        if not bounded.done:
            return
    came.append(True)


class _Bounded:
    """A test that gives up at some time."""

    def __init__(self, test: Test, limit: float) -> None:
        self.done = False
        self._test, self._limit = test, limit

    def __call__(self) -> bool:
        self.done = self._test()
        return self.done or time.monotonic() > self._limit


def _at_exit() -> None:
    if _owner != os.getpid() or MPI.Is_finalized():
        return
    limit = time.monotonic() + PATIENCE_S
    for engine in list(_open):
        while not engine.at_rest() and time.monotonic() < limit:  # requests that nobody has waited for
            time.sleep(1e-4)
        if not engine.at_rest():
            continue
        if engine.failures.broken or not engine.calls or not engine.waits.done:
            continue
        try:
            meet(engine, limit)
        except AgreedError as error:
            if getattr(sys, "last_value", None) is None:  # else it has had a traceback
                say(f"error: {error}")
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            time.sleep(_FORWARD_S)
            MPI.Finalize()
            os._exit(1)  # nothing else changes the exit code any more
