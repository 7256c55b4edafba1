"""What each rank of a node does, in memory that the others of its node read: it waits, or it computes, and since when.

A thread of each rank writes its beat there. A rank whose beat is old is stopped, whatever it was doing.
"""

import contextlib
import os
import signal
import time

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.node import all_agree, ranks_of_node, share_memory

_SINCE, _BEAT, _DROPPED = range(3)  # words of a rank; `since` is negative while it computes
_BYTES = 64  # of a rank, a cache line


class Board:
    """The node's table, all times in nanoseconds of a clock that its processes share.

    Args:
        job: all ranks. Collective over it, blocks.

    Attributes:
        works: every rank of the job can read what the others of its node write.
        rank: of this process in `job`.
        node: the ranks of this node, ascending.
        nodes: of each rank of the job the first rank of its node.
    """

    def __init__(self, job: MPI.Intracomm) -> None:
        self.rank, self.node = job.Get_rank(), ranks_of_node(job)
        firsts = np.empty(job.Get_size(), np.int64)
        job.Allgather(np.array([self.node[0]], np.int64), firsts)
        self.nodes: list[int] = firsts.tolist()
        memory, processes = share_memory(job, self.node, _BYTES)
        self._words: dict[int, NDArray[np.int64]] = {}
        self._files: dict[int, int] = {}
        if memory is not None:
            # Whose memory could be mapped by its process's number has that number here too.
            self._words = {rank: each.view(np.int64) for rank, each in zip(self.node, memory, strict=True)}
            with contextlib.suppress(OSError, AttributeError):
                for rank, process in zip(self.node, processes, strict=True):
                    self._files[rank] = os.pidfd_open(process)
        self._processes = dict(zip(self.node, processes, strict=True))
        self.works = all_agree(job, len(self._files) == len(self.node))  # all lived until here: no number is another's
        if self.works:
            self.wait(False)
            self.beat()

    def wait(self, waits: bool) -> None:
        """This rank waits for others from now on, or computes."""
        now = time.monotonic_ns()
        self._words[self.rank][_SINCE] = now if waits else -now

    def beat(self) -> None:
        """This rank is not stopped."""
        self._words[self.rank][_BEAT] = time.monotonic_ns()

    def waits_since(self, rank: int) -> int | None:
        """Since when a rank of this node waits; None while it computes."""
        since = int(self._words[rank][_SINCE])
        return since if since > 0 else None

    def lags_since(self, rank: int) -> int:
        """Since when a rank of this node computes; of one that waits its last beat: old where it is stopped."""
        since = int(self._words[rank][_SINCE])
        return -since if since < 0 else self.beats_since(rank)

    def beats_since(self, rank: int) -> int:
        """The last beat of a rank of this node."""
        return int(self._words[rank][_BEAT])

    def stopped(self, rank: int) -> bool:
        """Whether the system says that a rank's process is stopped, as by SIGSTOP."""
        try:
            with open(f"/proc/{self._processes[rank]}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
        except OSError:
            return False

    def drop(self, rank: int, waited_ns: int) -> None:
        """Kills a rank of this node that others have waited for so long. Its memory says so to those that live."""
        self._words[rank][_DROPPED] = max(1, waited_ns)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._files[rank], signal.SIGKILL)

    def dropped_ns(self, rank: int) -> int:
        """How long others had waited for a rank when it was dropped; 0 of one that was not, or is on another node."""
        return int(self._words[rank][_DROPPED]) if rank in self._words else 0

    def close(self) -> None:
        """Nobody is dropped any more."""
        for file in self._files.values():
            os.close(file)
        self._files = {}
