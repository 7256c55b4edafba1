"""The links of a rank's stages with their neighbours: who sends what to whom, and the memory for it, agreed at once.

Shapes are known before: nothing is agreed while a batch is under way. A message has a slot at the receiver whenever
the schedule lets its sender make it, so that sending never waits; `depths` says how many that takes.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi import shared_memory
from psgd.collectives.mpi.tags import Tag
from psgd.parallel.schedules import catalog
from psgd.parallel.schedules.instruction import place
from psgd.parallel.schedules.schedule import alive
from psgd.parallel.stages.messages import MessageInlet, MessageOutlet
from psgd.parallel.stages.shared_slots import SharedInlet, SharedOutlet, Slots
from psgd.runtime.agreement import gather


class Outlet(Protocol):
    """Where a stage's messages leave it, in order."""

    def send(self, message: NDArray[Any], total: int) -> bool:
        """Takes a copy of a message, or returns False where there is no room now. Does not block.

        Args:
            message: (samples, ...).
            total: samples of the whole batch, for the receiver to compare with its own.
        """

    def close(self) -> None:
        """Frees what it has."""


class Inlet(Protocol):
    """Where they reach the next one, in the order in which they were sent."""

    def arrived(self) -> bool:
        """Whether the next message is here. Does not block."""

    def take(self, samples: int) -> tuple[int, NDArray[Any], int]:
        """Returns the slot that the next message lies in until `release`, the message, and its total."""

    def release(self, slot: int) -> None:
        """Frees a slot."""

    def close(self) -> None:
        """Frees what it has."""


@dataclass
class Links:
    """Of one stage; None at the ends of the pipeline.

    Attributes:
        x: activations from the stage before.
        dx: their gradients, back to it.
        y: activations to the stage behind.
        dy: their gradients, back from it.
    """

    x: Inlet | None = None
    dx: Outlet | None = None
    y: Outlet | None = None
    dy: Inlet | None = None

    def close(self) -> None:
        """Closes all."""
        for link in (self.x, self.dx, self.y, self.dy):
            if link is not None:
                link.close()


@dataclass(frozen=True)
class Edge:
    """One direction between two stages.

    Attributes:
        number: unique, and its tag.
        sender: rank, stage.
        receiver: rank, stage.
        backward: gradients and not activations.
        depth: slots.
        shape: of a sample.
    """

    number: int
    sender: tuple[int, int]
    receiver: tuple[int, int]
    backward: bool
    depth: int
    shape: tuple[int, ...]


def depths(name: str, ranks: int, chunks: int, microbatches: int) -> list[tuple[int, int]]:
    """Returns for each pair of neighbouring stages how many activations, and gradients, can be on their way or in use.

    A message is in use from the sender's F (or B, X) until the receiver's B or W. The sender has at most `alive`
    microbatches between its own F and B; where the receiver's W follows its X later, its own come on top.
    """
    most = [1] * (ranks * chunks)
    split = False
    for m in range(1, microbatches + 1):
        schedule = catalog.make(name, ranks, m, chunks)
        for stage in range(ranks * chunks):
            rank, chunk = place(stage, ranks)
            program = tuple(each for each in schedule.programs[rank] if each.chunk == chunk)
            most[stage] = max(most[stage], alive(program))
            split = split or any(each.kind == "W" for each in program)
    least = ranks if chunks > 1 else min(2, microbatches)  # forward passes alone run ahead
    return [(max(least, here + (there if split else 0)), here) for here, there in itertools.pairwise(most)]


def edges(shapes: Sequence[tuple[int, ...]], ranks: int, counts: Sequence[tuple[int, int]]) -> list[Edge]:
    """Lists all directions between stages, the same on all ranks.

    Args:
        shapes: of the output of each stage but the last.
        ranks: of the pipeline.
        counts: of `depths`.
    """
    found = []
    for stage, (shape, (forward, backward)) in enumerate(zip(shapes, counts, strict=True)):
        here, there = (place(stage, ranks)[0], stage), (place(stage + 1, ranks)[0], stage + 1)
        found.append(Edge(2 * stage, here, there, False, forward, shape))
        found.append(Edge(2 * stage + 1, there, here, True, backward, shape))
    return found


@dataclass
class _Memory:
    """Of one receiver's edge: its slots here, and what others need to find them."""

    own: shared_memory.SharedArray | None = None
    address: dict[str, Any] = field(default_factory=dict)


def connect(comm: MPI.Intracomm, every: Sequence[Edge], batch: int, dtype: Any) -> dict[int, Links]:
    """Makes the links of this rank's stages. Collective, blocks.

    Args:
        comm: private to the pipeline.
        every: all edges, the same list on all ranks.
        batch: most samples of a message.
        dtype: of the elements.

    Returns:
        For each of this rank's stages that has a neighbour, its links.
    """
    links: dict[int, Links] = {}

    def put(stage: int, name: str, link: Inlet | Outlet) -> None:
        setattr(links.setdefault(stage, Links()), name, link)

    made = {edge.number: _made(edge, comm.rank, batch, dtype) for edge in every}
    addresses = gather(comm, {str(number): memory.address for number, memory in made.items() if memory.address})
    reached: dict[int, NDArray[Any] | None] = {}
    for edge in every:
        if edge.sender[0] == comm.rank != edge.receiver[0]:
            address = addresses[edge.receiver[0]].get(str(edge.number), {})
            size = Slots.nbytes(edge.depth, batch, edge.shape, dtype)
            reached[edge.number] = shared_memory.attach(address, size, np.uint8) if address else None
    fine = gather(comm, {str(number): memory is not None for number, memory in reached.items()})
    for edge in every:
        inlet, outlet = ("dy", "dx") if edge.backward else ("x", "y")
        receives, sends = edge.receiver[0] == comm.rank, edge.sender[0] == comm.rank
        own = made[edge.number].own
        if not receives and not sends:
            continue
        slots = edge.depth, batch, edge.shape, dtype
        if receives and sends:
            memory = Slots(np.zeros(Slots.nbytes(*slots), np.uint8), *slots)
            put(edge.receiver[1], inlet, SharedInlet(memory))
            put(edge.sender[1], outlet, SharedOutlet(memory))
        elif fine[edge.sender[0]][str(edge.number)]:
            if receives and own is not None:
                put(edge.receiver[1], inlet, SharedInlet(Slots(own.array, *slots)))
            elif (memory_there := reached.get(edge.number)) is not None:
                put(edge.sender[1], outlet, SharedOutlet(Slots(memory_there, *slots)))
        elif receives:
            put(edge.receiver[1], inlet, MessageInlet(comm, edge.sender[0], Tag.EDGE + edge.number, *slots))
        else:
            put(edge.sender[1], outlet, MessageOutlet(comm, edge.receiver[0], Tag.EDGE + edge.number, *slots))
    for each in made.values():
        if each.own is not None:
            each.own.seal()
    return links


def _made(edge: Edge, rank: int, batch: int, dtype: Any) -> _Memory:
    """Memory for the messages of an edge that ends here; none where it begins here too, or there is none to share."""
    if edge.receiver[0] != rank or edge.sender[0] == rank or not shared_memory.enabled():
        return _Memory()
    try:
        own = shared_memory.SharedArray(Slots.nbytes(edge.depth, batch, edge.shape, dtype), np.uint8)
    except OSError:
        return _Memory()
    return _Memory(own, own.address())


def bytes_of(every: Sequence[Edge], rank: int, batch: int, dtype: Any) -> int:
    """Returns how much memory for messages a rank has: an estimate for those who place layers."""
    sample = np.dtype(dtype).itemsize
    return sum(edge.depth * batch * math.prod(edge.shape) * sample for edge in every if edge.receiver[0] == rank)
