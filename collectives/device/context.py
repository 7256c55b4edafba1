"""What an engine keeps between its device calls: the way to its neighbours, decided once on all ranks alike."""

from typing import Any

from mpi4py import MPI

from psgd.collectives.device import staged
from psgd.collectives.device.cuda import Cuda
from psgd.collectives.device.cuda_aware import CudaAwareMpi
from psgd.collectives.device.detect import cuda_aware
from psgd.collectives.device.transport import Transport
from psgd.collectives.mpi.node import share_memory
from psgd.kernels.notice import say


class DeviceContext:
    """The way of device memory between a rank and its neighbours.

    Attributes:
        rank: of this process.
        size: number of ranks.
    """

    def __init__(self, comm: MPI.Intracomm, aware: bool, memories: list[Any] | None) -> None:
        self.rank, self.size = comm.rank, comm.size
        self._comm, self._aware = comm, aware
        self._memories = memories
        self._gpus: dict[int, Cuda] = {}
        self._transport: Transport | None = None

    @classmethod
    def create(cls, comm: MPI.Intracomm, shares: bool) -> "DeviceContext":
        """Finds out how. Collective, blocks; calls MPI from one thread only.

        Args:
            comm: private, of the engine.
            shares: all ranks are on one node and share memory.
        """
        aware, why = cuda_aware(comm)
        memories = None
        if not aware and shares:
            memories, _ = share_memory(comm, list(range(comm.size)), staged.REGION_BYTES)
        if not aware and comm.rank == 0:
            _say_once(f"GPU arrays go through pinned host memory: {why}")
        return cls(comm, aware, memories)

    def gpu(self, device: int) -> Cuda:
        """A GPU of this rank."""
        if device not in self._gpus:
            self._gpus[device] = Cuda(device)
        return self._gpus[device]

    def transport(self, gpu: Cuda) -> Transport:
        """To this rank's neighbours, for all of this process's GPUs; `gpu` makes what is needed the first time."""
        if self._transport is None:
            comm, rank, size = self._comm, self.rank, self.size
            left, right = (rank - 1) % size, (rank + 1) % size
            if self._aware:
                self._transport = CudaAwareMpi(comm, left, right)
            elif self._memories is not None:
                near = [self._memories[place] for place in (rank, left, right)]
                self._transport = staged.Mailbox(gpu, near)
            else:
                self._transport = staged.Relay(gpu, comm, left, right)
        return self._transport

    def close(self) -> None:
        """Lets go of pinned memory. Not collective."""
        if self._transport is not None:
            self._transport.close()
        self._memories = None


_said = False


def _say_once(line: str) -> None:
    global _said
    if not _said:
        _said = True
        say(line)
