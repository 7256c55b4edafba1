"""Memory that all workers of a node have in common: parameters, and a cache line of counters for each worker.

It is the node's first worker's, mapped by the others.
"""

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi import shared_memory
from psgd.collectives.mpi.node import address_of, ranks_of_node
from psgd.kernels.memory import counters as kernels
from psgd.metrics.totals import Sums
from psgd.runtime.agreement import agree, gather

_LINE = kernels.LINE_BYTES


class SharedParameters:
    """This worker's view of it. Creating is collective over all workers, blocks.

    Args:
        workers: all workers, on any number of nodes.
        like: a vector of the size and dtype that the parameters shall have.
        tallies: also make `tally`.

    Attributes:
        ranks: the workers on this node, ascending.
        place: this worker's place among them.
        params: the node's parameters, zero at first.
        tally: integers of the same number and width, zero at first; None unless asked for.

    Raises:
        UsageError: some node's workers share no memory; on all workers.
    """

    def __init__(self, workers: MPI.Intracomm, like: NDArray[np.floating], tallies: bool) -> None:
        self.ranks = ranks_of_node(workers)
        self.place = self.ranks.index(workers.rank)
        lines, room = _LINE * len(self.ranks), -(-like.nbytes // _LINE) * _LINE
        memory = share(workers, self.ranks, lines + room * (1 + tallies), "strategy hogwild")
        self.params: NDArray[np.floating] = memory[lines : lines + like.nbytes].view(like.dtype)
        self.tally: NDArray[np.signedinteger] | None = None
        if tallies:
            self.tally = memory[lines + room :][: like.nbytes].view(f"i{like.itemsize}")
        self._at = address_of(memory)
        self._lines = memory[:lines].view(np.int64).reshape(-1, kernels.LINE_WORDS)
        self._losses = self._lines.view(np.float64)[:, kernels.LOSS]
        self._size = len(self.ranks)

    def count(self, samples: int, loss: float) -> None:
        """Counts a step of this worker, once its update is written; `loss` is the mean over its samples."""
        kernels.count(self._at, self.place, samples, float(loss))

    def put(self, word: int, value: int) -> None:
        """Writes a word of this worker's line."""
        kernels.put(self._at, self.place, word, value)

    def totals(self) -> tuple[int, int, int, int]:
        """See `psgd.kernels.memory.counters.totals`."""
        return kernels.totals(self._at, self._size)

    def sums(self) -> Sums:
        """Of this node's workers."""
        steps, samples = self._lines[:, kernels.STEPS : kernels.SAMPLES + 1].sum(0).tolist()
        return Sums(steps, samples, float(self._losses.sum()))

    def steps(self) -> list[int]:
        """Of each of this node's workers."""
        steps: list[int] = self._lines[:, kernels.STEPS].tolist()
        return steps

    def active(self) -> list[int]:
        """The places of this node's workers that are not done."""
        places: list[int] = np.flatnonzero(self._lines[:, kernels.DONE] == 0).tolist()
        return places

    def wish(self) -> int:
        """The largest of any worker's for a cut."""
        return int(self._lines[:, kernels.WISH].max())

    def line(self) -> list[float]:
        """This worker's steps, samples, and the sum of its losses."""
        return [*self._lines[self.place, kernels.STEPS : kernels.SAMPLES + 1].tolist(), self._losses[self.place].item()]

    def set_line(self, steps: int, samples: int, loss: float) -> None:
        """Writes them, before anybody counts."""
        self.put(kernels.STEPS, steps)
        self.put(kernels.SAMPLES, samples)
        self._losses[self.place] = loss

    def all_done(self) -> bool:
        """Whether all are. All that they wrote is there to be read then."""
        return self.totals()[2] == self._size

    def compile(self) -> None:
        """Compiles what steps need. Changes nothing."""
        kernels.count(address_of(np.zeros(kernels.LINE_WORDS, np.int64)), 0, 0, 0.0)
        self.totals()
        if self.tally is not None:
            kernels.add_one(self.tally[:0])


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
        whole = np.zeros(nbytes + _LINE, np.uint8)
        start = -address_of(whole) % _LINE
        array, why = whole[start : start + nbytes], ""
    elif comm.rank == ranks[0] and not why:
        try:
            memory = shared_memory.SharedArray(nbytes, np.uint8)
            array = memory.array  # type: ignore[assignment]
        except OSError as error:
            why = f"{nbytes} bytes of it are not to be had: {error}"
    addresses = gather(comm, memory.address() if memory is not None else {})
    try:
        if array is None and not why:
            array = shared_memory.attach(addresses[ranks[0]], nbytes, np.uint8)  # type: ignore[assignment]
            why = "" if array is not None else f"that of rank {ranks[0]} cannot be reached (another container or user?)"
        hint = "psgd doctor tells more; the other strategies do without"
        agree(comm, who, {}, f"expected memory shared by ranks {ranks} of one node, but {why}: {hint}" if why else None)
    finally:
        if memory is not None:
            memory.seal()
    assert array is not None
    return array
