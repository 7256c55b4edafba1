"""Which servers hold which shards. All ranks know it from who has died."""

from collections.abc import Iterable
from typing import NamedTuple


class Move(NamedTuple):
    """A shard that a server is to copy to another, which becomes a holder."""

    shard: int
    source: int
    target: int


class Holders:
    """The holders of each shard: of the servers from the one of that number on, in a ring, the first two that live.

    Args:
        servers: how many there were at first, and how many shards there are.
        lost: those that have died.
    """

    def __init__(self, servers: int, lost: Iterable[int] = ()) -> None:
        self._servers, self.lost = servers, frozenset(lost)
        self.living = [server for server in range(servers) if server not in self.lost]

    def of(self, shard: int) -> list[int]:
        """A shard's holders: the one that answers, then the one that stands by, if there is one."""
        ring = [(shard + place) % self._servers for place in range(self._servers)]
        return [server for server in ring if server not in self.lost][:2]

    def answered_by(self, server: int) -> list[int]:
        """The shards that a server answers for, its own first; when others die, more come behind these."""
        return [shard for shard in self._from(server) if self.of(shard)[:1] == [server]]

    def held_by(self, server: int) -> list[int]:
        """The shards that a server holds: those that it answers for, then those for which it stands by."""
        standing_by = [shard for shard in self._from(server) if self.of(shard)[1:] == [server]]
        return [*self.answered_by(server), *standing_by]

    def moves(self, newly_lost: int) -> list[Move]:
        """What has to be copied once another server has died, in the order of shards."""
        after = Holders(self._servers, self.lost | {newly_lost})
        found = []
        for shard in range(self._servers):
            old, new = self.of(shard), after.of(shard)
            found += [Move(shard, new[0], target) for target in new if target not in old]
        return found

    def _from(self, server: int) -> list[int]:
        return [(server - place) % self._servers for place in range(self._servers)]

    @property
    def bits(self) -> int:
        """The lost servers as a number: bit s is server s."""
        return sum(1 << server for server in self.lost)

    @classmethod
    def of_bits(cls, servers: int, bits: int) -> "Holders":
        """What has those `bits`."""
        return cls(servers, [server for server in range(servers) if bits >> server & 1])
