"""All-reduce of compressed updates: every rank's payload goes to all, and all decode in the same order.

P ranks, payloads of s bytes: (P - 1) s bytes a rank, against 2 (P - 1)/P S of the dense array's S. So it is worth it
where P s is much less than 2 S; it grows with P, where the dense one does not.
"""

import zlib
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi import byte_counts
from psgd.kernels.codecs import sparse
from psgd.kernels.codecs.codec import Codec
from psgd.kernels.errors import ContractError

_LENGTH, _MARK, _WORDS = range(3)
UNMARKED = -1
MARK_EVERY = 256
"""Calls between two comparisons of what the ranks hold."""


class Gathering(Protocol):
    """What is used of a communicator; `psgd.collectives.Communicator` is one."""

    size: int

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None: ...

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None: ...

    def Allreduce(self, sendbuf: Any, recvbuf: Any) -> None: ...


class CompressedAllreduce:
    """Adds the ranks' updates to an array that all ranks hold alike, as their codecs encode them.

    What a codec leaves out stays in its residual and is sent later. All ranks add the same bits in the same order, so
    arrays that were equal stay so. Every `MARK_EVERY` calls their checksums are compared. Collective; not for
    several threads.

    Args:
        comm: the ranks; it stays the caller's.
        codec: this rank's, of the same kind, length and dtype on all.

    Attributes:
        codec: as given.
        bytes_sent, bytes_received: of this rank, as `psgd.collectives.mpi.byte_counts` counts.
    """

    def __init__(self, comm: Gathering, codec: Codec) -> None:
        self.codec = codec
        self.bytes_sent = self.bytes_received = 0
        self._comm, self._calls = comm, 0
        self._payload = np.empty(codec.max_nbytes(), np.uint8)
        self._words = np.zeros((comm.size, _WORDS), np.int64)
        self._mine = np.zeros(_WORDS, np.int64)
        self._fine = np.zeros(comm.size, np.int64)
        self._payloads = np.empty(0, np.uint8)

    def compile(self, zeros: NDArray[Any]) -> None:
        """Compiles what calls need, on an update of zeros that changes nothing. Collective, blocks."""
        calls, moved = self._calls, (self.bytes_sent, self.bytes_received)
        self.codec.warm_up()
        self.fine(zeros)
        self(zeros, zeros)
        self._comm.Allreduce(MPI.IN_PLACE, zeros)
        self._calls, (self.bytes_sent, self.bytes_received) = calls, moved

    def among(self, comm: Gathering) -> "CompressedAllreduce":
        """The same among other ranks: with this codec and what was counted so far. Its first call compares arrays."""
        made = CompressedAllreduce(comm, self.codec)
        made.bytes_sent, made.bytes_received = self.bytes_sent, self.bytes_received
        return made

    def fine(self, update: NDArray[Any]) -> NDArray[np.bool_]:
        """Whose updates are finite; call it first, and leave the step away where not all are. Collective, blocks.

        One value that is not a number would stay in a residual for ever, and in everyone's array.

        Returns:
            A bool for each rank.
        """
        looks = sparse.look(update) if update.size else 0
        self._comm.Allgather(np.array([looks >= 0], np.int64), self._fine)
        self._count(byte_counts.allgather(self._comm.size, 8))
        return np.asarray(self._fine != 0)

    def __call__(self, update: NDArray[Any], out: NDArray[Any]) -> None:
        """Adds all ranks' updates to `out`, as their codecs encode them. Collective, blocks.

        Args:
            update: this rank's, finite, 1-D and contiguous; not changed.
            out: the same bits on all ranks, before and after.

        Raises:
            ContractError: the ranks' arrays are not the same any more, on all ranks.
            CodecError: a payload is damaged, on all ranks.
        """
        nbytes = self.codec.encode(update, self._payload)
        marks = self._calls % MARK_EVERY == 0
        self._calls += 1
        self._add_all(nbytes, zlib.crc32(out.data) if marks else UNMARKED, out)

    def replace(self, update: NDArray[Any]) -> None:
        """Puts what all ranks' codecs say, summed in rank order, in the place of the update. Collective, blocks.

        Args:
            update: this rank's, finite, 1-D and contiguous; the same bits on all ranks afterwards.

        Raises:
            CodecError: a payload is damaged, on all ranks.
        """
        nbytes = self.codec.encode(update, self._payload)
        self._calls += 1
        update.fill(0)
        self._add_all(nbytes, UNMARKED, update)

    def _add_all(self, nbytes: int, mark: int, out: NDArray[Any]) -> None:
        """Exchanges payloads, of which this rank's has so many bytes, and adds all to `out`."""
        self._mine[_LENGTH] = nbytes
        self._mine[_MARK] = mark
        self._comm.Allgather(self._mine, self._words.reshape(-1))
        if (self._words[:, _MARK] != self._words[0, _MARK]).any():
            raise ContractError(
                f"compressed all-reduce: the ranks' arrays differ after {self._calls - 1} calls: checksums "
                f"{[f'{mark:#x}' for mark in self._words[:, _MARK].tolist()]}; did a single rank write to its array?"
            )
        lengths = self._words[:, _LENGTH].tolist()
        total = sum(lengths)
        if total > self._payloads.size:
            self._payloads = np.empty(2 * total, np.uint8)
        came = self._payloads[:total]
        self._comm.Allgatherv(self._payload[:nbytes], [came, lengths])
        at = 0
        for length in lengths:
            if length:
                self.codec.decode_add(came[at : at + length], out)
            at += length
        self.bytes_sent += byte_counts.allgather(self._comm.size, nbytes)
        self.bytes_received += total - nbytes
        self._count(byte_counts.allgather(self._comm.size, self._mine.nbytes))

    def dense(self, update: NDArray[Any], out: NDArray[Any]) -> None:
        """Adds the ranks' updates and all that their codecs have left out to `out`, whole. Collective, blocks.

        Args:
            update: this rank's; the sum of all afterwards.
            out: the same bits on all ranks, before and after.
        """
        self.codec.send_whole(update)
        self._comm.Allreduce(MPI.IN_PLACE, update)
        np.add(out, update, out=out)
        self._count(byte_counts.allreduce(self._comm.size, update.nbytes))

    def _count(self, nbytes: int) -> None:
        self.bytes_sent += nbytes
        self.bytes_received += nbytes
