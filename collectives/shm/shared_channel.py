"""Calls between the ranks of a node through their shared memory: this rank's words for them, and the kernel's turns."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from psgd.collectives.mpi.node import address_of
from psgd.collectives.mpi.wait import Steps
from psgd.collectives.shm import layout
from psgd.collectives.shm.call_kernel import GREETING, run
from psgd.collectives.shm.direct import aborted
from psgd.collectives.shm.registered import Node
from psgd.kernels.errors import PeerLostError

Addresses = tuple[int, int, int, int, int]


class SharedChannel:
    """One of the node's two sequences of calls, each with a region of shared memory of its own.

    Args:
        node: this rank's node.
        index: 0 or 1, of the regions.
        spins: looks at a word before MPI gets its turn.
        disagreement: makes the error to raise where descriptors differ.

    Attributes:
        node: as given.
        block: the words of the current call, as kernels read them.
        descriptor: the words of it that the other ranks read, the first ones.
        prepared: what all words of `block` but a few were written for, where that is known.
        addresses: of what kernels work on.
        spins: as given.
    """

    def __init__(self, node: Node, index: int, spins: int, disagreement: Callable[[], Exception]) -> None:
        self.node = node
        self.block = np.zeros(layout.CALL_WORDS, np.int64)
        self.descriptor = self.block[: layout.DESCRIPTOR_WORDS]
        self.prepared: object = None
        self.spins = spins
        self._index = index
        self._disagreement = disagreement
        self._status = layout.DONE
        self._fetched = np.empty(3 * layout.FETCH_BYTES + 64, np.uint8)
        self._table = node.table(index, -(-address_of(self._fetched) // 64) * 64)
        self._state = np.zeros(layout.STATE_WORDS, np.int64)
        self._where = np.zeros((node.size, layout.WHERE_WORDS), np.int64)
        self._scratch = np.empty(0, np.uint8)
        self.remap()
        self.aborted()  # compiles now, so that no call waits for it

    def remap(self) -> None:
        """To be called after a registration: its table may have moved."""
        self.addresses = self.addresses_with(self.block)

    def addresses_with(self, block: NDArray[np.int64]) -> Addresses:
        """The same for a call whose words are in another block."""
        tables = (self._table, self._state, block, self.node.maps, self._where)
        return tuple(address_of(table) for table in tables)  # type: ignore[return-value]

    def scratch(self, size: int, dtype: DTypeLike) -> NDArray[Any]:
        """Memory that is kept between calls; its contents are anything."""
        nbytes = size * np.dtype(dtype).itemsize
        if self._scratch.nbytes < nbytes:
            self._scratch = np.empty(nbytes, np.uint8)
        return self._scratch[:nbytes].view(dtype)

    def run(self, reads: bool, addresses: Addresses | None = None) -> Steps:
        """Carries out a call whose words are written.

        Args:
            reads: peers' private memory may be read.
            addresses: of `addresses_with`; by default the words are in `block`.

        Raises:
            AgreedError: descriptors differ or some rank's arguments are wrong.
            PeerLostError: it could not read a peer's memory.
        """
        places = addresses or self.addresses
        yield from self.resume(run(*places, reads, self.spins), reads, places)

    def resume(self, status: int, reads: bool, addresses: Addresses | None = None) -> Steps:
        """As `run`, for a kernel that has had its first turn and returned `status`."""
        self._status = status
        places = addresses or self.addresses

        def test() -> bool:
            self._status = run(*places, reads, self.spins)
            return self._status != layout.WAIT

        if status == layout.WAIT:
            yield test
        if self._status == layout.FAILED:
            raise PeerLostError("a peer's memory cannot be read any more")
        if self._status == layout.MISMATCH:
            raise self._disagreement()

    @property
    def in_call(self) -> bool:
        """Whether the kernel is in the middle of a call."""
        return bool(self._state[layout.PHASE] != 0)

    @property
    def path(self) -> int:
        """The method that the last call took, of `layout`."""
        return int(self._state[layout.PATH])

    def report(self, text: str) -> None:
        """Puts an error in this rank's descriptor, to be published in place of its arguments."""
        raw = text.encode()[: layout.INLINE_BYTES]
        self.descriptor[layout.ERROR] = len(raw)
        at = _inline_at(int(self._state[layout.CALLS]))
        self._region(self.node.rank)[at : at + len(raw)] = np.frombuffer(raw, np.uint8)

    def descriptors(self) -> tuple[list[NDArray[np.int64]], list[str]]:
        """What the node's ranks published in the last call: descriptors, and what was wrong with their arguments."""
        at = _inline_at(int(self._state[layout.CALLS]) - 1)
        descriptors, texts = [], []
        for rank in range(self.node.size):
            memory = self._region(rank)
            descriptor = memory[at - layout.DESCRIPTOR_BYTES : at].view(np.int64).copy()
            descriptors.append(descriptor)
            texts.append(bytes(memory[at : at + int(descriptor[layout.ERROR])]).decode(errors="replace"))
        return descriptors, texts

    def behind(self) -> list[int]:
        """The ranks, by their place in the node, that have not come as far as this one in the current call."""
        mine = int(self._state[layout.STEP])
        steps = [int(self._region(rank)[:8].view(np.int64)[0]) for rank in range(self.node.size)]
        return [rank for rank in range(self.node.size) if steps[rank] < mine]

    def ahead(self) -> bool:
        """Whether some rank has come further than this one, which is in no call: it waits in a later one."""
        mine = int(self._state[layout.STEP])
        return any(int(self._region(rank)[:8].view(np.int64)[0]) > mine for rank in range(self.node.size))

    @property
    def met(self) -> bool:
        """Whether all of the node's ranks have come to the call that the kernel is in the middle of."""
        return bool(self._state[layout.PHASE] > GREETING)

    def tell_wait(self, call: int, other_calls: int) -> None:
        """Lets the node's ranks see in which call this one waits, and how many it has started of the other sequence."""
        words = self._waits(self.node.rank, self._index)
        words[1] = other_calls
        words[0] = call  # last, as it is read first: a number never goes with an older one of the other sequence

    def told_waits(self, index: int) -> list[tuple[int, int]]:
        """What `tell_wait` of the other ranks told last of a sequence of calls."""
        others = [rank for rank in range(self.node.size) if rank != self.node.rank]
        return [(int(words[0]), int(words[1])) for words in (self._waits(rank, index) for rank in others)]

    def _waits(self, rank: int, index: int) -> NDArray[np.int64]:
        return self.node.region(rank, index)[layout.WAITS_AT :][:16].view(np.int64)

    def abort(self) -> None:
        """Marks for the node's ranks that this one left a call in the middle."""
        at = layout.ABORT_AT
        self._region(self.node.rank)[at : at + 8].view(np.int64)[0] = self._begun()

    def left(self, patient: bool) -> list[int]:
        """The places of the other ranks that have left a call in the middle, and not one after the current call.

        In the middle of a call, who has taken all steps that this rank waits for has done its part in it. Elsewhere who
        has begun a later exchange of descriptors was done with what this rank is in, but may not have sent all of it.

        Args:
            patient: leaves out those.
        """
        marked = [place for place in range(self.node.size) if self._left_at(place) and place != self.node.rank]
        if self.in_call:
            behind = self.behind() if marked else []
            return [place for place in marked if place in behind]
        return [place for place in marked if not patient or self._left_at(place) <= self._begun()]

    def _left_at(self, place: int) -> int:
        return int(self._region(place)[layout.ABORT_AT :][:8].view(np.int64)[0])

    def _begun(self) -> int:
        """Exchanges of descriptors that this rank has begun, plus one: never 0."""
        return int(self._state[layout.CALLS]) + int(self._state[layout.PHASE] == GREETING) + 1

    def aborted(self) -> int:
        """The place of the first rank that has left a call in the middle, or -1."""
        return aborted(self.addresses[0])

    def _region(self, rank: int) -> NDArray[np.uint8]:
        return self.node.region(rank, self._index)


def _inline_at(call: int) -> int:
    return layout.DESCRIPTORS_AT + (call & 1) * layout.DESCRIPTOR_STRIDE + layout.DESCRIPTOR_BYTES
