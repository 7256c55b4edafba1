"""How far the ranks' clocks are apart: ping-pong with rank 0, as NTP does it.

`time.perf_counter` is one clock for all processes of a host, but each host has its own. Rank 0 sends a message, the
other answers with its clock's time, and rank 0 takes the middle between sending and receiving for the same moment. Of
several rounds the quickest counts: the error is at most half of its duration. It is measured at the start and at the
end of a run; between, the offset follows a straight line, so that clocks of different speeds stay aligned.
"""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mpi4py import MPI

from psgd.collectives.mpi.tags import Tag
from psgd.metrics.trace.alignment import Offset
from psgd.runtime.agreement import gather

ROUNDS = 20
Clock = Callable[[], float]
Wait = Callable[[MPI.Request], None]


def clock_name() -> str:
    """Names this process's clock: equal names are the same clock."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/time').readlink()}"
    except OSError:
        return f"unknown {MPI.Get_processor_name()}"


def measure(comm: MPI.Intracomm, wait: Wait, clock: Clock = time.perf_counter, name: str | None = None) -> Offset:
    """This rank's offset. Collective over `comm`, blocks: rank 0 asks the ranks with other clocks one after the other.

    Args:
        comm: private.
        wait: waits for a request; what it raises passes.
        clock: of this rank.
        name: of that clock; None finds out.
    """
    names = [each["clock"] for each in gather(comm, {"clock": clock_name() if name is None else name})]
    others = [rank for rank, each in enumerate(names) if each != names[0]]
    found = Offset(clock(), 0.0, 0.0)
    if comm.rank == 0:
        for rank in others:
            _ask(comm, rank, wait, clock)
    elif comm.rank in others:
        found = _answer(comm, wait, clock)
    return found


def _ask(comm: MPI.Intracomm, rank: int, wait: Wait, clock: Clock) -> None:
    theirs, best = np.zeros(1), np.array([0.0, 0.0, np.inf])
    for _ in range(ROUNDS):
        receiving = comm.Irecv(theirs, rank, Tag.TRACE)
        sent = clock()
        wait(comm.Isend(np.zeros(1), rank, Tag.TRACE))
        wait(receiving)
        received = clock()
        if (received - sent) / 2 < best[2]:
            best[:] = theirs[0], theirs[0] - (sent + received) / 2, (received - sent) / 2
    wait(comm.Isend(best, rank, Tag.TRACE))


def _answer(comm: MPI.Intracomm, wait: Wait, clock: Clock) -> Offset:
    for _ in range(ROUNDS):
        wait(comm.Irecv(np.zeros(1), 0, Tag.TRACE))
        wait(comm.Isend(np.array([clock()]), 0, Tag.TRACE))
    best = np.zeros(3)
    wait(comm.Irecv(best, 0, Tag.TRACE))
    return Offset(*best.tolist())
