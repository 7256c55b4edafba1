"""The ranks of a run as a grid with named axes, each axis with communicators of its own.

Begin with `ProcessMesh`; `node_order` says who is where.
"""

import math
from types import TracebackType
from typing import cast

from mpi4py import MPI

from psgd.kernels.errors import UsageError
from psgd.parallel.axes import AXES, written
from psgd.parallel.mesh.node_order import Grid, Place
from psgd.runtime.agreement import agree, gather
from psgd.runtime.launcher_env import node_name, refuse_alone
from psgd.runtime.option import whole_number


def sizes_for(ranks: int, pipe: int = 1, tensor: int = 1, data: int | None = None) -> dict[str, int]:
    """The number of ranks along each axis of `AXES`, with as much data as there are ranks for where it is None.

    Raises:
        UsageError: a size is no whole number of 1 or more, or so many ranks do not make such a mesh.
    """
    given = {"tensor": tensor, "pipe": pipe, "data": data}
    sizes = {name: whole_number(f"mesh: {name}", size) for name, size in given.items() if size is not None}
    for name, size in sizes.items():
        if size < 1:
            raise UsageError(f"mesh: {name}: expected 1 or more ranks, got {size}")
    known = math.prod(sizes.values())
    if data is None and ranks % known == 0:
        sizes["data"] = ranks // known
    elif known != ranks:
        shown = written(sizes) or "one rank along every axis"
        many = "a multiple of " if data is None else ""
        raise UsageError(f"mesh: {shown}: expected {many}{known} ranks, got {ranks}; start it with -n {known}")
    return {name: sizes[name] for name in AXES}


class ProcessMesh:
    """The ranks of `comm` in a grid: pipeline stages, tensor ranks and replicas.

    Who is where follows from the nodes' names alone (`node_order`), so tensor ranks share a node where that can be.
    Along each axis a rank has a communicator, in which its rank is its coordinate. All are private duplicates. Creating
    a mesh is collective over `comm`; call `free()` (or leave the `with` block) on all ranks::

        with ProcessMesh(comm, pipe=2, tensor=2) as mesh:
            pipeline = Pipeline(mesh.pipe, model, cuts, batch=64, microbatches=8)

    Args:
        comm: any intracommunicator; it stays the caller's.
        pipe: stages of the pipeline.
        tensor: ranks that share the weights of each layer.
        data: copies of the model; None takes all ranks.

    Attributes:
        world: private communicator of all ranks, in their order in `comm`.
        pipe, tensor, data: the ranks that differ from this one along that axis alone, in order of their coordinate.
        replica: all ranks with this rank's data coordinate: they hold one copy of the model together. Rank 0 in it
            is the one with coordinate 0 along the other axes.
        sizes: ranks along each axis.
        coordinates: this rank's place along each axis.
        places: every rank's, in rank order; rank 0 is at 0 along every axis.
        order: the axes, the one whose neighbours are nearest first.

    Raises:
        AgreedUsageError: the sizes do not fit the number of ranks; on all ranks.
        AgreedContractError: ranks ask for different sizes; on all ranks.
    """

    def __init__(self, comm: MPI.Intracomm, *, pipe: int = 1, tensor: int = 1, data: int | None = None) -> None:
        refuse_alone()
        complaint, sizes = None, dict[str, int]()
        try:
            sizes = sizes_for(comm.Get_size(), pipe, tensor, data)
        except UsageError as error:
            complaint = str(error)
        agree(comm, "", sizes, complaint)
        self._grid = Grid([str(each["node"]) for each in gather(comm, {"node": node_name()})], sizes)
        self.sizes, self.order, self.places = self._grid.sizes, self._grid.order, self._grid.places
        self.coordinates: Place = self.places[comm.Get_rank()]
        self._owned: list[MPI.Intracomm] = []
        self.world = self._own(comm.Dup())
        self.pipe, self.tensor, self.data = (self._along({name}) for name in ("pipe", "tensor", "data"))
        self.replica = self._along({name for name, axis in AXES.items() if axis.of_a_replica})

    def _own(self, comm: MPI.Comm) -> MPI.Intracomm:
        self._owned.append(cast(MPI.Intracomm, comm))
        return self._owned[-1]

    def _along(self, axes: set[str]) -> MPI.Intracomm:
        """The ranks that differ from this one along these axes alone; along several, the last of `AXES` counts most."""
        color = key = 0
        for name in reversed(list(AXES)):
            size, here = self.sizes[name], self.coordinates[name]
            if name in axes:
                key = key * size + here
            else:
                color = color * size + here
        return self._own(self.world.Split(color, key))

    @property
    def is_cut(self) -> bool:
        """Whether one copy of the model takes more than one rank."""
        return any(self.sizes[name] > 1 for name, axis in AXES.items() if axis.of_a_replica)

    def describe(self) -> str:
        """One line: the axes with their sizes, nearest neighbours first, and which of them leave a node."""
        return self._grid.describe()

    def free(self) -> None:
        """Frees the communicators. Collective; a second call does nothing."""
        while self._owned:
            self._owned.pop().Free()

    def __enter__(self) -> "ProcessMesh":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.free()
