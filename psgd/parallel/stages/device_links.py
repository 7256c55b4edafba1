"""The links of stages on GPUs: slots in GPU memory where the sender can map it, else by way of the hosts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

from psgd.collectives.mpi import shared_memory
from psgd.parallel.stages import links
from psgd.parallel.stages.device_slots import DeviceInlet, DeviceOutlet, DeviceSlots, StagedInlet, StagedOutlet
from psgd.parallel.stages.links import Edge, Inlet, Links, Outlet
from psgd.runtime.agreement import gather


class Mapped:
    """What a rank has of its peers' GPU memory, and they of its; to be ended together.

    Attributes:
        edges: the numbers of those whose messages go from GPU to GPU, of all ranks.
    """

    def __init__(self, comm: MPI.Intracomm, gpu: Any) -> None:
        self.edges: set[int] = set()
        self._comm, self._gpu = comm, gpu
        self._own: int | None = None
        self._there: dict[str, int | None] = {}
        self._events: list[Any] = []

    def allocate(self, nbytes: int) -> tuple[int, str]:
        """Makes this rank's memory."""
        self._own, handle = self._gpu.allocate(nbytes)
        return self._own, handle

    def reach(self, handle: str) -> int | None:
        """Maps another rank's memory, once."""
        if handle not in self._there:
            self._there[handle] = self._gpu.reach(handle)
        return self._there[handle]

    def event(self) -> tuple[Any, str]:
        """Makes an event that lives as long as this."""
        event, handle = self._gpu.event()
        self._events.append(event)
        return event, handle

    def close(self) -> None:
        """Unmaps and frees. Collective: no rank frees what another has mapped. Blocks."""
        self._gpu.settle()
        for address in self._there.values():
            if address is not None:
                self._gpu.unmap(address)
        self._there = {}
        self._comm.Barrier()
        if self._own is not None:
            self._gpu.free(self._own)
            self._own = None


@dataclass
class _Receiving:
    """An edge that ends here.

    Attributes:
        state: on the host.
        start: of the first slot in this rank's memory on the GPU.
        freed: events, and by what they are opened.
    """

    state: shared_memory.SharedArray
    start: int
    freed: list[tuple[Any, str]] = field(default_factory=list)


def connect(
    comm: MPI.Intracomm, every: Sequence[Edge], batch: int, dtype: Any, gpu: Any
) -> tuple[dict[int, Links], Mapped]:
    """As `psgd.parallel.stages.links.connect`, for stages on the ranks' current GPUs. Collective, blocks.

    Returns:
        For each of this rank's stages that has a neighbour, its links; and what is to be closed when they are not used
        any more.
    """
    mapped, found = Mapped(comm, gpu), dict[int, Links]()

    def put(stage: int, name: str, link: Inlet | Outlet) -> None:
        setattr(found.setdefault(stage, Links()), name, link)

    def arrays(edge: Edge, address: int) -> list[Any]:
        size = DeviceSlots.slot_bytes(batch, edge.shape, dtype)
        return [gpu.array(address + size * index, (batch, *edge.shape), dtype) for index in range(edge.depth)]

    between = [edge for edge in every if edge.sender[0] != edge.receiver[0]]
    receiving = {edge.number: edge for edge in between if edge.receiver[0] == comm.rank}
    sending = {edge.number: edge for edge in between if edge.sender[0] == comm.rank}
    mine, offers = _offer(mapped, list(receiving.values()), batch, dtype)
    offered = gather(comm, offers)
    slots: dict[int, DeviceSlots] = {}
    handles: dict[str, Any] = {}
    for number, edge in sending.items():
        if (offer := offered[edge.receiver[0]].get(str(number))) is None:
            continue
        state = shared_memory.attach(offer["state"], DeviceSlots.state_bytes(edge.depth), np.uint8)
        address = None if state is None else mapped.reach(offer["memory"])
        freed = [] if address is None else [gpu.reach_event(each) for each in offer["freed"]]
        if state is not None and address is not None and None not in freed:
            filled = [mapped.event() for _ in range(edge.depth)]
            slots[number] = DeviceSlots(state, arrays(edge, address + offer["start"]), [e for e, _ in filled], freed)
            handles[str(number)] = [handle for _, handle in filled]
    reached = gather(comm, handles)
    complete: dict[str, bool] = {}
    for number, edge in receiving.items():
        filled = [gpu.reach_event(each) for each in reached[edge.sender[0]].get(str(number), [])]
        complete[str(number)] = bool(filled) and None not in filled
        if complete[str(number)]:
            own = mine[number]
            slots[number] = DeviceSlots(own.state.array, arrays(edge, own.start), filled, [e for e, _ in own.freed])
    for each in mine.values():
        each.state.seal()
    fine = gather(comm, complete)
    mapped.edges = {edge.number for edge in between if fine[edge.receiver[0]].get(str(edge.number))}
    for edge in every:
        inlet, outlet = ("dy", "dx") if edge.backward else ("x", "y")
        receives, sends = edge.receiver[0] == comm.rank, edge.sender[0] == comm.rank
        if receives and sends:
            events = [(mapped.event()[0], mapped.event()[0]) for _ in range(edge.depth)]
            there = [gpu.xp.empty((batch, *edge.shape), dtype) for _ in range(edge.depth)]
            state = np.zeros(DeviceSlots.state_bytes(edge.depth), np.uint8)
            slots[edge.number] = DeviceSlots(state, there, [e for e, _ in events], [e for _, e in events])
        elif edge.number not in mapped.edges:
            continue
        if receives:
            put(edge.receiver[1], inlet, DeviceInlet(slots[edge.number], gpu))
        if sends:
            put(edge.sender[1], outlet, DeviceOutlet(slots[edge.number], gpu))
    _by_hosts(comm, [edge for edge in between if edge.number not in mapped.edges], batch, dtype, gpu, put)
    return found, mapped


def _offer(
    mapped: Mapped, receiving: Sequence[Edge], batch: int, dtype: Any
) -> tuple[dict[int, _Receiving], dict[str, Any]]:
    """Makes the memory of edges that end here; returns it, and what their senders need to reach it."""
    mine: dict[int, _Receiving] = {}
    if not shared_memory.enabled() or not receiving:
        return mine, {}
    sizes = [edge.depth * DeviceSlots.slot_bytes(batch, edge.shape, dtype) for edge in receiving]
    address, memory = mapped.allocate(sum(sizes))
    offers, start = dict[str, Any](), 0
    for edge, size in zip(receiving, sizes, strict=True):
        state = shared_memory.SharedArray(DeviceSlots.state_bytes(edge.depth), np.uint8)
        own = mine[edge.number] = _Receiving(state, address + start, [mapped.event() for _ in range(edge.depth)])
        freed = [handle for _, handle in own.freed]
        offers[str(edge.number)] = {"state": state.address(), "memory": memory, "start": start, "freed": freed}
        start += size
    return mine, offers


def _by_hosts(comm: MPI.Intracomm, every: Sequence[Edge], batch: int, dtype: Any, gpu: Any, put: Any) -> None:
    """Links for edges that no GPU reaches. Collective."""
    shapes = {(edge.sender[1], edge.backward): (batch, *edge.shape) for edge in every}
    for stage, ends in (links.connect(comm, every, batch, dtype) if every else {}).items():
        for name in ("x", "dy"):
            if (inlet := getattr(ends, name)) is not None:
                put(stage, name, StagedInlet(inlet, gpu))
        for name in ("y", "dx"):
            if (outlet := getattr(ends, name)) is not None:
                put(stage, name, StagedOutlet(outlet, gpu, shapes[stage, name == "dx"], dtype))
