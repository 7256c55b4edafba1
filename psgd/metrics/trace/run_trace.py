"""One rank's part of a run's trace: begun by all ranks together, merged on rank 0 at the end, or on who leads then."""

import contextlib
import os
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.tags import Tag
from psgd.kernels.errors import DataError
from psgd.kernels.notice import say
from psgd.metrics.trace import chrome
from psgd.metrics.trace.alignment import Offset
from psgd.metrics.trace.clock_offsets import Wait, measure
from psgd.metrics.trace.event_ring import EventRing, parse
from psgd.metrics.trace.span import Traceable, attach
from psgd.runtime.new_files import lose


class Member(Protocol):
    """Who a rank is among those that are traced together: a `Mesh`, or an `Among`."""

    @property
    def world(self) -> MPI.Intracomm:
        """All of them, for collectives of psgd alone."""

    @property
    def role(self) -> str:
        """What it does."""

    @property
    def index(self) -> int:
        """Its number among those that do the same."""


@dataclass(frozen=True)
class Among:
    """A member of a run of several meshes.

    Attributes:
        world: the ranks of all meshes.
        role: as `Member`.
        index: as `Member`.
        place: along the axes of a mesh, as `psgd.kernels.notice.in_mesh` writes it.
    """

    world: MPI.Intracomm
    role: str
    index: int
    place: str = ""


class RunTrace:
    """A rank's trace. Creating is collective over the mesh, blocks.

    Args:
        path: the file, the same on all ranks; rank 0 writes it.
        rank: as the user counts.
        mesh: who is who.
        wait: waits for a request.

    Attributes:
        ring: this rank's events.
    """

    def __init__(self, path: Path, rank: int, mesh: Member, wait: Wait) -> None:
        self._path, self._world, self._leads = path, mesh.world, mesh.world.rank == 0
        self._wrote = False
        facts = {
            "rank": rank,
            "role": f"{mesh.role} {mesh.index} {mesh.place if isinstance(mesh, Among) else ''}".rstrip(),
            "host": socket.gethostname()[:200],
            "pid": os.getpid(),
        }
        if self._leads:
            chrome.remove_parts(path)
        began = np.array([time.perf_counter()])
        wait(self._world.Ibcast(began, 0))  # until then nobody makes a file: what is there is of an earlier run
        self.ring = EventRing(chrome.part_path(path, rank), facts)
        self._first, self._began = measure(self._world, wait), float(began[0])
        self.ring.tell(first=self._first, began=self._began)

    def watch(self, spans: Iterable[Traceable]) -> None:
        """Times these from now on."""
        attach(self.ring, spans)

    def finish(self, wait: Wait, living: MPI.Intracomm | None = None) -> None:
        """Merges all ranks' events into the file, one rank's at a time. Collective, blocks; `close` has to follow.

        A file that cannot be written costs the trace, not the run.

        Args:
            wait: waits for a request.
            living: the ranks that live, of a run that survives deaths. The first of them writes the file, with what the
                dead have left where it can read that. It may be done again with fewer.
        """
        world = self._world if living is None else living
        self.ring.tell(last=self._last(world, wait))
        if world.rank:
            wait(world.Isend(np.frombuffer(self.ring.content(), np.uint8), 0, Tag.TRACE))
        else:
            arriving = self._arriving(world, wait)
            try:
                chrome.write(self._path, arriving)
            except OSError as error:
                lose(f"trace {self._path}", error)
                for _ in arriving:  # the others wait until they have sent theirs
                    pass
            self._wrote = True

    def close(self) -> None:
        """Removes what the ranks have recorded: it is merged. Does not block."""
        self.ring.remove()
        if self._wrote:
            chrome.remove_parts(self._path)

    def _last(self, world: MPI.Intracomm, wait: Wait) -> Offset:
        """How far this rank's clock is ahead of rank 0's, which may be dead: by way of the first that lives."""
        of_first = np.array(self._first)
        wait(world.Ibcast(of_first, 0))
        found, (_, seconds, error) = measure(world, wait), of_first.tolist()
        return Offset(found.at, found.seconds + seconds, found.error + error)

    def _arriving(self, world: MPI.Intracomm, wait: Wait) -> Iterator[tuple[dict[str, Any], NDArray[Any]]]:
        """All ranks' events, in the order of `world`; then those of the dead."""
        content, seen = self.ring.content(), set[int]()
        for rank in range(world.size):
            if rank:
                received = bytearray(len(content))
                wait(world.Irecv([received, MPI.BYTE], rank, Tag.TRACE))
                content = bytes(received)
            facts, events = parse(content)
            seen.add(facts["rank"])
            yield facts, events
        for part in chrome.parts(self._path):
            with contextlib.suppress(OSError, DataError):
                facts, events = parse(part.read_bytes(), str(part))
                if facts.get("began") == self._began and facts["rank"] not in seen:
                    yield facts, events

    def abandon(self) -> None:
        """The run has failed: what the ranks have recorded stays in their files, which `psgd trace` merges.

        Nobody merges them here: the other ranks may still be recording, and this one may be killed at any moment.
        """
        if self._leads and self.ring.path is not None:
            say(f"the run failed; what its ranks did until then: psgd trace {self._path}")
