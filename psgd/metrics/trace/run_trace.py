"""One rank's part of a run's trace: begun by all ranks together, merged on rank 0 at the end."""

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
from psgd.kernels.notice import say
from psgd.metrics.trace import chrome
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
    """

    world: MPI.Intracomm
    role: str
    index: int


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
        facts = {
            "rank": rank,
            "role": f"{mesh.role} {mesh.index}",
            "host": socket.gethostname()[:200],
            "pid": os.getpid(),
        }
        if self._leads:
            chrome.remove_parts(path)
        began = np.array([time.perf_counter()])
        wait(self._world.Ibcast(began, 0))  # until then nobody makes a file: what is there is of an earlier run
        self.ring = EventRing(chrome.part_path(path, rank), facts)
        self.ring.tell(first=measure(self._world, wait), began=float(began[0]))

    def watch(self, spans: Iterable[Traceable]) -> None:
        """Times these from now on."""
        attach(self.ring, spans)

    def finish(self, wait: Wait) -> None:
        """Merges all ranks' events into the file, one rank's at a time. Collective, blocks.

        A file that cannot be written costs the trace, not the run.
        """
        self.ring.tell(last=measure(self._world, wait))
        if not self._leads:
            wait(self._world.Isend(np.frombuffer(self.ring.content(), np.uint8), 0, Tag.TRACE))
        else:
            arriving = self._arriving(wait)
            try:
                chrome.write(self._path, arriving)
            except OSError as error:
                lose(f"trace {self._path}", error)
                for _ in arriving:  # the others wait until they have sent theirs
                    pass
        self.ring.remove()

    def _arriving(self, wait: Wait) -> Iterator[tuple[dict[str, Any], NDArray[Any]]]:
        """All ranks' events, in the order of the mesh."""
        yield parse(self.ring.content())
        content = bytearray(len(self.ring.content()))
        for rank in range(1, self._world.size):
            wait(self._world.Irecv([content, MPI.BYTE], rank, Tag.TRACE))
            yield parse(bytes(content))

    def abandon(self) -> None:
        """The run has failed: what the ranks have recorded stays in their files, which `psgd trace` merges.

        Nobody merges them here: the other ranks may still be recording, and this one may be killed at any moment.
        """
        if self._leads and self.ring.path is not None:
            say(f"the run failed; what its ranks did until then: psgd trace {self._path}")
