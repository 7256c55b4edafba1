"""Payloads that come from one rank, one after the other."""

from functools import partial

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.tags import Tag


class Arrival:
    """Memory for one payload, and the receive that fills it.

    Args:
        comm: a private communicator.
        rank: who sends.
        room: bytes of the longest payload.

    Attributes:
        request: persistent; to be started before each payload.
        came: tests whether it has come.
    """

    def __init__(self, comm: MPI.Intracomm, rank: int, room: int) -> None:
        self._into = np.empty(room, np.uint8)
        self._status = MPI.Status()
        self.request = comm.Recv_init([self._into, MPI.BYTE], rank, Tag.PAYLOAD)
        self.came = partial(self.request.Test, self._status)

    @property
    def payload(self) -> NDArray[np.uint8]:
        """What has come: a view, valid until the request is started again."""
        return self._into[: self._status.Get_count(MPI.BYTE)]
