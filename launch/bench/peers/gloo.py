"""Gloo, PyTorch's collectives on CPUs, as its own users run it: a process of its own for each rank, bound to no core.

Gloo's thread for the network shares a rank's cores. In a process that MPI has bound to one core the two would wait
for each other, and its calls take up to ten times as long. Here a rank starts `gloo_process.py`, asks it by a
`Conversation`, and sleeps while it is measured.
"""

import os
import socket
import sys
from dataclasses import asdict

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.kernels.errors import AgreedError
from psgd.launch.bench.peers import processes
from psgd.launch.bench.peers.cores import quiet_barrier
from psgd.launch.bench.problem import BenchOptions

_INTERFACE = "GLOO_SOCKET_IFNAME"


class Gloo:
    """The processes of all ranks, joined. Made by `join`, ended by `close`.

    Args:
        comm: the ranks that ask.
        process: this rank's.
    """

    def __init__(self, comm: MPI.Intracomm, process: processes.Conversation) -> None:
        self._comm, self._process = comm, process

    @classmethod
    def join(cls, comm: MPI.Intracomm, process: processes.Conversation | None) -> "Gloo | None":
        """Joins what the ranks have started, or finds that some rank could not. Collective, blocks."""
        if not on_all(comm, process is not None):
            return None
        assert process is not None
        hosts = set(comm.allgather(socket.gethostname()))
        local = "lo" if len(hosts) == 1 and sys.platform == "linux" else ""
        host = "127.0.0.1" if len(hosts) == 1 else socket.gethostname()
        quiet_barrier(comm)
        store = process.ask(processes.TIMEOUT_S, do="keep_store", host=host, size=comm.size) if comm.rank == 0 else {}
        quiet_barrier(comm)
        store = comm.bcast(store, 0)
        if store is None or "error" in store:
            return None
        gloo = cls(comm, process)
        joined = gloo._ask(
            do="join",
            rank=comm.rank,
            size=comm.size,
            interface=os.environ.get(_INTERFACE, local),
            cores=sorted(processes.launcher_cores()),
            **store,
        )
        return None if joined is None else gloo

    def prepare(self, options: BenchOptions, nbytes: int) -> str | None:
        """Makes a problem's buffers and verifies one call. Collective.

        Returns:
            What is wrong with the result, the same on all ranks; None where Gloo cannot do this, "" if it is right.
        """
        answer = self._ask(do="prepare", options=asdict(options), nbytes=nbytes)
        if answer is None:
            return None
        return next((wrong for wrong in self._comm.allgather(answer["wrong"]) if wrong), "")

    def rounds(self, inner: int, repeats: int) -> NDArray[np.float64]:
        """Seconds of one call in each round of `inner` calls, of the slowest rank. Collective; MPI's ranks sleep.

        Returns:
            float64 (1, repeats).

        Raises:
            AgreedError: Gloo has failed after it was prepared.
        """
        answer = self._ask(do="rounds", inner=inner, repeats=repeats)
        if answer is None:
            raise AgreedError("bench: Gloo failed while it was timed; use --no-peers to omit the peers")
        seconds = np.array(answer["seconds"], np.float64).reshape(1, repeats)
        self._comm.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
        return seconds

    def _ask(self, **question: object) -> dict[str, object] | None:
        """Asks all processes at once; None on all ranks where one of them fails. Collective."""
        quiet_barrier(self._comm)
        answer = self._process.ask(processes.TIMEOUT_S, **question)
        quiet_barrier(self._comm)
        return answer if on_all(self._comm, answer is not None and "error" not in answer) else None


def on_all(comm: MPI.Intracomm, good: bool) -> bool:
    """Whether it is true on all ranks. Collective."""
    answer = np.array([good], np.int64)
    comm.Allreduce(MPI.IN_PLACE, answer, MPI.MIN)
    return bool(answer[0])
