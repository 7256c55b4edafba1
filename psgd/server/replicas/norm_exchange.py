"""The norm over all shards, each of which counts once though two servers have it, and though servers may die meanwhile.

Each server sends the digits (`psgd.kernels.exact_squares`) of all shards that it holds to all others, and waits for
theirs. Both holders of a shard send the same digits, and the first ones that come count: where a server dies before all
have its message, they have those of the other holder. Sums of digits are exact, so that their order changes no bit.
"""

from collections.abc import Mapping

import numpy as np
from mpi4py import MPI

from psgd.collectives.mpi.request_cleanup import close
from psgd.collectives.mpi.tags import Tag
from psgd.kernels.errors import ContractError, PeerLostError
from psgd.kernels.exact_squares import LIMBS, Limbs
from psgd.runtime.mesh import Mesh
from psgd.runtime.ulfm.deaths import means_death
from psgd.server.replicas.holders import Holders
from psgd.server.replicas.moves import Wait


class NormExchange:
    """One server's part.

    Args:
        mesh: who is who.
        wait: for a request.
    """

    def __init__(self, mesh: Mesh, wait: Wait) -> None:
        self._mesh, self._wait = mesh, wait
        longest = 1 + mesh.servers * LIMBS
        self._out, self._total = np.zeros(longest), np.zeros(LIMBS)
        self._boxes = {server: np.zeros(longest) for server in range(mesh.servers) if server != mesh.index}
        self._receives = {
            server: mesh.world.Recv_init([box, MPI.DOUBLE], mesh.server_rank(server), Tag.NORM)
            for server, box in self._boxes.items()
        }
        self._sends: dict[int, MPI.Prequest] = {}
        self._holders: Holders | None = None
        self._held: dict[int, list[int]] = {}  # of each other server that lives
        self._gone: set[int] = set()  # servers that are dead: their requests may have ended or not
        self._numbered = 0
        for server, request in self._receives.items():
            self._start(server, request)

    def total(self, holders: Holders, own: Mapping[int, Limbs]) -> Limbs:
        """Adds the digits of all shards. All living servers do this at the same place in the order; blocks.

        Args:
            holders: who holds what at that place.
            own: this server's, by number of the shard.

        Returns:
            The sum; valid until the next call.

        Raises:
            PeerLostError: all holders of a shard have died.
        """
        total, came = self._total, 0
        total[:] = 0.0
        if len(holders.living) <= 2:  # each one has all shards
            for limbs in own.values():
                total += limbs
            return total
        if holders is not self._holders:
            self._lay_out(holders)
        self._numbered += 1
        self._out[0] = self._numbered
        for place, (shard, limbs) in enumerate(own.items()):
            self._out[1 + place * LIMBS : 1 + (place + 1) * LIMBS] = limbs
            total += limbs
            came |= 1 << shard
        for server, request in self._sends.items():
            self._start(server, request)
        for server, held in self._held.items():
            if self._ended(server, self._receives[server]):
                came = self._add(server, held, came)
                self._start(server, self._receives[server])
        for server, request in self._sends.items():
            self._ended(server, request)
        if missing := [shard for shard in range(self._mesh.servers) if not came >> shard & 1]:
            first, second = holders.of(missing[0])
            self._mesh.survival.not_survived()
            raise PeerLostError(
                f"servers {first} and {second} ended: they held shard {missing[0]}, and nobody else did"
            )
        return total

    def _add(self, server: int, held: list[int], came: int) -> int:
        """Adds what has come from a server of shards that have not `came` yet; returns those that have now, as bits."""
        box = self._boxes[server]
        if box[0] != self._numbered:
            raise ContractError(f"server {server} sent norm {box[0]:g}, expected number {self._numbered}")
        for place, shard in enumerate(held):
            if not came >> shard & 1:
                self._total += box[1 + place * LIMBS : 1 + (place + 1) * LIMBS]
                came |= 1 << shard
        return came

    def _lay_out(self, holders: Holders) -> None:
        """Who holds what has changed. All that was sent has arrived, but at the dead."""
        mesh = self._mesh
        close([], list(self._sends.values()))
        self._holders = holders
        others = [server for server in holders.living if server != mesh.index]
        self._held = {server: holders.held_by(server) for server in others}
        message = [self._out[: 1 + len(holders.held_by(mesh.index)) * LIMBS], MPI.DOUBLE]
        self._sends = {server: mesh.world.Send_init(message, mesh.server_rank(server), Tag.NORM) for server in others}

    def _start(self, server: int, request: MPI.Prequest) -> None:
        if server in self._gone:
            return
        try:
            request.Start()
        except MPI.Exception as error:
            if not means_death(error):
                raise
            self._gone.add(server)

    def _ended(self, server: int, request: MPI.Prequest) -> bool:
        """Whether a request has ended well; else that server is dead. Blocks."""
        if server not in self._gone and not self._wait(server, request):
            self._gone.add(server)
        return server not in self._gone

    def close(self) -> None:
        """Frees all requests. Blocks for a moment at most."""
        close(list(self._receives.values()), list(self._sends.values()))
