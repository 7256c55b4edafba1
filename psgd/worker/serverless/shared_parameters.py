"""Memory that all workers of a node have in common: parameters, and a cache line of counters for each worker.

It is the node's first worker's, mapped by the others.
"""

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi import shared_memory
from psgd.collectives.mpi.node import address_of, ranks_of_node
from psgd.kernels.memory.counters import add_one
from psgd.runtime.agreement import agree, gather
from psgd.worker.serverless.counter_lines import BYTES, CounterLines


class SharedParameters:
    """This worker's view of it. Creating is collective over all workers, blocks.

    Args:
        workers: all workers, on any number of nodes.
        like: a vector of the size and dtype that the parameters shall have.
        tallies: also make `tally`.

    Attributes:
        ranks: the workers on this node, ascending.
        lines: their counters.
        params: the node's parameters, zero at first.
        tally: integers of the same number and width, zero at first; None unless asked for.

    Raises:
        UsageError: some node's workers share no memory; on all workers.
    """

    def __init__(self, workers: MPI.Intracomm, like: NDArray[np.floating], tallies: bool) -> None:
        self.ranks = ranks_of_node(workers)
        head, room = BYTES * len(self.ranks), -(-like.nbytes // BYTES) * BYTES
        memory = share(workers, self.ranks, head + room * (1 + tallies), "strategy hogwild")
        self.lines = CounterLines(memory[:head], self.ranks.index(workers.rank))
        self.params: NDArray[np.floating] = memory[head : head + like.nbytes].view(like.dtype)
        self.tally: NDArray[np.signedinteger] | None = None
        if tallies:
            self.tally = memory[head + room :][: like.nbytes].view(f"i{like.itemsize}")
            add_one(self.tally[:0], like[:0])


def share(comm: MPI.Intracomm, ranks: list[int], nbytes: int, who: str) -> NDArray[np.uint8]:
    """Makes one piece of memory for each node. Collective over `comm`, blocks.

    Args:
        comm: ranks on any number of nodes.
        ranks: those on this rank's node, ascending.
        nbytes: the same on all ranks of a node.
        who: what needs it, for the error.

    Returns:
        Bytes, zero at first, that begin a cache line. They stay valid while the array or a view is alive on any rank.

    Raises:
        UsageError: some node's ranks share no memory; on all ranks.
    """
    memory: shared_memory.SharedArray | None = None
    array: NDArray[np.uint8] | None = None
    why = "" if shared_memory.enabled() else "it is switched off here (PSGD_SHARED=0, or a system without memory files)"
    if len(ranks) == 1:  # shared with nobody
        whole = np.zeros(nbytes + BYTES, np.uint8)
        start = -address_of(whole) % BYTES
        array, why = whole[start : start + nbytes], ""
    elif comm.rank == ranks[0] and not why:
        try:
            memory = shared_memory.SharedArray(nbytes, np.uint8)
            array = memory.array  # type: ignore[assignment]
        except OSError as error:
            why = f"{nbytes} bytes of it are not available: {error}"
    addresses = gather(comm, memory.address() if memory is not None else {})
    try:
        if array is None and not why:
            array = shared_memory.attach(addresses[ranks[0]], nbytes, np.uint8)  # type: ignore[assignment]
            why = "" if array is not None else f"that of rank {ranks[0]} cannot be reached (another container or user?)"
        hint = "psgd doctor says more; the other strategies do not need it"
        agree(comm, who, {}, f"expected memory shared by ranks {ranks} of one node, but {why}: {hint}" if why else None)
    finally:
        if memory is not None:
            memory.seal()
    assert array is not None
    return array
