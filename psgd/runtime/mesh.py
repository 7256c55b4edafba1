"""Who is who: ranks seen through named sub-communicators instead of bare rank arithmetic."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, cast

from mpi4py import MPI

from psgd.kernels.errors import AgreedUsageError, UsageError

Role = Literal["server", "worker"]


def check_servers(servers: int, size: int, peers: bool = False) -> None:
    """Refuses a number of servers that so many ranks cannot have. Does not communicate.

    Args:
        servers: how many of the ranks are to be servers.
        size: number of ranks.
        peers: the strategy has no servers.

    Raises:
        UsageError: what was expected, and how to fix it.
    """
    if peers or 0 < servers < size or (servers == 0 and size == 1):
        return
    if size == 1:
        raise UsageError(f"servers: expected 0 on a single rank, got {servers}: start at least {servers + 1} ranks")
    fix = "start more ranks, or ask for fewer servers" if servers > 0 else "or take a strategy without servers"
    raise UsageError(f"servers: expected 1 to {size - 1} of {size} ranks to be servers, got {servers}: {fix}")


class Mesh:
    """The ranks of a run: some hold the parameters, the others compute gradients.

    A single rank is a worker with no server. All communicators are private duplicates: psgd's messages never meet
    the caller's. Creating a mesh is collective over `comm`; call `free()` (or leave the `with` block) on all ranks.

    Args:
        comm: any intracommunicator; it stays the caller's.
        servers: number of servers; 0 with a single rank, or where workers have none (`peers`).
        peers: there are no servers whatever the number of ranks.
        serving: the ranks of `comm` that serve, server 0 first, the same on all ranks (`psgd.runtime.placement`); None
            is the first ones.

    Attributes:
        world: private communicator of all ranks: the servers first, then the workers, whatever their ranks in `comm`.
        server, worker, data: sub-communicators by name, None on ranks outside. `data` joins the ranks that split
            the samples between them: the workers.
        role: "server" or "worker".
        index: this rank's number within its role.
        servers, workers: how many there are of each.
        survival: what a run does about workers that die (`psgd.server.surviving`); None ends it.
        replicas: further servers that hold each shard (`psgd.server.replicas`), 0 or 1; with `survival` only.

    Raises:
        AgreedUsageError: the ranks do not suffice (on all ranks alike).
    """

    def __init__(
        self, comm: MPI.Intracomm, servers: int = 1, peers: bool = False, serving: Sequence[int] | None = None
    ) -> None:
        size, rank = comm.Get_size(), comm.Get_rank()
        try:
            check_servers(servers, size, peers)
        except UsageError as error:
            raise AgreedUsageError(str(error)) from None  # all ranks have the same numbers
        self.survival: Any = None
        self.replicas = 0
        self.servers = servers
        self.workers = size - servers
        first = list(range(servers)) if serving is None else list(serving)
        order = first + [other for other in range(size) if other not in set(first)]
        place = order.index(rank)
        plain = order == list(range(size))
        self.world = comm.Dup() if plain else cast(MPI.Intracomm, comm.Split(0, place))
        self.role: Role = "server" if place < servers else "worker"
        self.index = place if self.role == "server" else place - servers
        part = self.world.Split(0 if self.role == "server" else 1, place)
        self.server = part if self.role == "server" else None
        self.worker = part if self.role == "worker" else None
        self.data = self.worker
        self._owned = [part, self.world]

    def server_rank(self, index: int) -> int:
        """Rank in `world` of server `index`."""
        return index

    def worker_rank(self, index: int) -> int:
        """Rank in `world` of worker `index`."""
        return self.servers + index

    def free(self) -> None:
        """Frees the communicators. Collective; a second call does nothing. One that may have lost ranks is kept."""
        if self.survival is not None:
            self._owned.clear()
        while self._owned:
            self._owned.pop(0).Free()

    def __enter__(self) -> "Mesh":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.free()
