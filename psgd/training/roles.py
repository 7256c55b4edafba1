"""Which part each rank of a run has: a place in the mesh, and along its data axis a server or a worker."""

from dataclasses import dataclass

from mpi4py import MPI

from psgd.config import TrainConfig
from psgd.parallel.mesh import ProcessMesh
from psgd.runtime import placement
from psgd.strategies import catalog as strategies


@dataclass(frozen=True)
class Roles:
    """Of this rank, and of those that it shares the samples with.

    Attributes:
        mesh: of all ranks, where the model is in pieces.
        data: the ranks that have the same part of the model: without a mesh all.
        servers, workers: how many of `data` are which.
        serving: those of `data` that serve, server 0 first.
        serves: whether this rank does.
        index: its number in its role.
        saves: whether it has a part in writing the final weights.
        counts: whether it speaks for its copy of the model, where several ranks evaluate it together.
        leads: whether this rank's counters are the run's: those of rank 0, or all where each has them.
    """

    mesh: ProcessMesh | None
    data: MPI.Intracomm
    servers: int
    workers: int
    serving: list[int]
    serves: bool
    index: int
    leads: bool
    saves: bool
    counts: bool

    def free(self) -> None:
        """Frees the mesh. Collective."""
        if self.mesh is not None:
            self.mesh.free()


def assign(config: TrainConfig, comm: MPI.Intracomm) -> Roles:
    """Gives each rank its part, and a GPU where it uses one. Collective over `comm`, blocks.

    Raises:
        AgreedUsageError: so many ranks cannot be such a mesh, or a GPU is missing; on all ranks.
    """
    mesh = None
    if config.in_pieces:
        mesh = ProcessMesh(comm, **{**config.axes, "data": comm.Get_size() // config.parts})
    data = comm if mesh is None else mesh.data
    servers = config.servers
    if servers is None:
        servers = strategies.default_servers(config.strategy, data.Get_size())
    serving = placement.agree(data, servers, config.placement if mesh is None else "dedicated")
    serves = data.Get_rank() in serving
    if "cuda" in (config.device, config.server_device):
        from psgd.backend import places

        places.choose(comm, (config.server_device if serves else config.device) == "cuda")
    return Roles(
        mesh,
        data,
        servers,
        workers=data.Get_size() - servers,
        serving=serving,
        serves=serves,
        index=placement.index(data.Get_rank(), serving),
        leads=mesh is None or comm.Get_rank() == 0,
        saves=config.shard == 3 or (comm.Get_rank() == 0 if mesh is None else mesh.coordinates["data"] == 0),
        counts=mesh is None or mesh.replica.Get_rank() == 0,
    )
