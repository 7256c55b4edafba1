"""The ranks of one node: who they are, and memory that they share."""

import contextlib
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi import shared_memory

_WORDS = 4  # of an address: process, file, token


def share_memory(
    comm: MPI.Intracomm, ranks: list[int], nbytes: int
) -> tuple[list[NDArray[np.uint8]] | None, list[int]]:
    """Makes memory on each rank that the others of its node map. Collective over `comm`, blocks.

    Args:
        comm: all ranks.
        ranks: those of this node.
        nbytes: of each rank's memory, zero at first.

    Returns:
        Each of the node's ranks' memory, or None on all ranks where one could not; and their processes.
    """
    own: shared_memory.SharedArray | None = None
    words = np.zeros(_WORDS, np.int64)
    words[1] = -1
    with contextlib.suppress(OSError, ValueError, OverflowError, MemoryError):
        own = shared_memory.SharedArray(nbytes, np.uint8)
        address = own.address()
        words[:2] = address["process"], address["file"]
        words[2:] = np.frombuffer(bytes.fromhex(str(address["token"])), np.int64)
    everyone = np.empty((comm.size, _WORDS), np.int64)
    comm.Allgather(words, everyone)
    theirs: list[NDArray[Any] | None] = []
    for rank in ranks:
        process, file = everyone[rank, :2].tolist()
        token = everyone[rank, 2:].tobytes().hex()
        if rank == comm.rank:
            theirs.append(own.array if own is not None else None)
        else:
            theirs.append(shared_memory.attach({"process": process, "file": file, "token": token}, nbytes, np.uint8))
    fine = all_agree(comm, all(memory is not None for memory in theirs))
    if own is not None:
        own.seal()
    processes = everyone[ranks, 0].tolist()
    return ([memory for memory in theirs if memory is not None] if fine else None), processes


def address_of(array: NDArray[Any]) -> int:
    """Where an array's first element lies."""
    if array.flags.c_contiguous:
        return MPI.Get_address(array)
    return int(array.__array_interface__["data"][0])


def ranks_of_node(comm: MPI.Intracomm) -> list[int]:
    """The ranks of `comm` on this node, ascending. Collective, blocks."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        ranks = np.empty(node.size, np.int64)
        node.Allgather(np.array([comm.rank], np.int64), ranks)
        return sorted(ranks.tolist())
    finally:
        node.Free()


def all_agree(comm: MPI.Intracomm, fine: bool) -> bool:
    """Whether something holds on all ranks. Collective, blocks."""
    word = np.array([fine], np.uint8)
    comm.Allreduce(MPI.IN_PLACE, word, MPI.MIN)
    return bool(word[0])
