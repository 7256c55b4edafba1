"""The shards that one server holds, as one: each takes the same steps, those for which it stands by last."""

from collections.abc import Callable, Mapping, Sequence

from psgd.checkpoint.state import State
from psgd.kernels.exact_squares import Limbs
from psgd.optim.optimizer import Optimizer
from psgd.runtime.jsonable import JSON
from psgd.server.replicas.holders import Holders
from psgd.server.shard import Fetch, Shard, Vector, WeightedGradient


class HeldShards:
    """What `psgd.server.shard.Shard` is to a server that holds one shard.

    Args:
        params: the whole vector.
        parts: the ranges of all shards.
        make: makes a shard of that number, in its range of `params`.
        server: this one's index.
        holders: who holds what.

    Attributes:
        params: the whole vector, of which this server has what it holds.
        held: their numbers, those first that it answers for.
        ranges: the segments of all that it holds, in `params`.
        answered: how many of them, the first ones, it answers for.
        add_up: with clipping, adds the digits of all shards from those that this server holds, by number. Collective.
    """

    add_up: Callable[[Holders, Mapping[int, Limbs]], Limbs]

    def __init__(
        self, params: Vector, parts: Sequence[range], make: Callable[[int], Shard], server: int, holders: Holders
    ) -> None:
        self.params, self._parts, self._make, self._server = params, parts, make, server
        self._shards: dict[int, Shard] = {}
        for shard in holders.held_by(server):
            self._shards[shard] = make(shard)
        self.held: list[int] = []
        self.hold(holders)

    def hold(self, holders: Holders) -> None:
        """From now on these hold what; what this server is to hold is here."""
        self._holders, self.held = holders, holders.held_by(self._server)
        self.ranges = [
            range(self._parts[shard].start + r.start, self._parts[shard].start + r.stop)
            for shard in self.held
            for r in self._shards[shard].ranges
        ]
        self.answered = sum(len(self._shards[shard].ranges) for shard in holders.answered_by(self._server))

    def state(self, shard: int) -> State:
        """All there is of a shard; views."""
        return self._shards[shard].saved()

    def saved(self) -> State:
        """As `psgd.server.shard.Shard.saved`, of the one that is this server's own."""
        return self.state(self._server)

    def restore(self, tensors: Mapping[str, Vector], facts: Mapping[str, JSON]) -> None:
        """Resumes from what `saved` gave of each shard that is held: "0.params", "1.params", ..."""
        for shard, each in self._shards.items():
            mine = {name: tensors[f"{shard}.{name}"] for name in _names_of(shard, tensors)}
            each.restore(mine, facts)

    def add_shard(self, shard: int) -> State:
        """Makes room for another shard, at the same step as those that are here; views, to be filled."""
        fresh, facts = self._make(shard), self._shards[self.held[0]].saved().facts
        tensors = fresh.saved().tensors
        if facts["open"]:
            tensors["open"] = fresh.params.copy()
        fresh.restore(tensors, facts)
        self._shards[shard] = fresh
        return fresh.saved()

    @property
    def optimizer(self) -> Optimizer:
        """The first one's: they are all at the same step."""
        return self._shards[self.held[0]].optimizer

    @property
    def version(self) -> int:
        """Steps taken."""
        return self.optimizer.version

    @property
    def lr(self) -> float:
        """Rate of the newest step."""
        return self.optimizer.lr

    @property
    def samples(self) -> int:
        """Applied so far."""
        return self._shards[self.held[0]].samples

    @property
    def open_samples(self) -> int:
        """In the sum of a group that is open."""
        return self._shards[self.held[0]].open_samples

    def apply(
        self,
        group: Sequence[WeightedGradient],
        fetch: Fetch,
        settle: Callable[[int], None],
        emit: Callable[[int], None],
    ) -> None:
        """As `psgd.server.shard.Shard.apply`, on each of them; with clipping by the norm over all shards."""
        digits = self._digits(group, fetch) if self.optimizer.clips and (group or self.open_samples) else None
        first = 0
        for shard in self.held:
            each = self._shards[shard]
            each.apply(group, _behind(first, fetch), _after(first, settle), _after(first, emit), digits)
            first += len(each.ranges)

    def _digits(self, group: Sequence[WeightedGradient], fetch: Fetch) -> Limbs:
        first, own = 0, {}
        for shard in self.held:
            each = self._shards[shard]
            own[shard] = each.gather(group, _behind(first, fetch))
            first += len(each.ranges)
        return self.add_up(self._holders, own)

    def add(self, contribution: WeightedGradient, fetch: Fetch) -> None:
        """As `psgd.server.shard.Shard.add`, on each of them."""
        first = 0
        for shard in self.held:
            each = self._shards[shard]
            each.add(contribution, _behind(first, fetch))
            first += len(each.ranges)


def _names_of(shard: int, tensors: Mapping[str, Vector]) -> list[str]:
    start = f"{shard}."
    return [name.removeprefix(start) for name in tensors if name.startswith(start)]


def _behind(first: int, fetch: Fetch) -> Fetch:
    return lambda worker, segment: fetch(worker, first + segment)


def _after(first: int, call: Callable[[int], None]) -> Callable[[int], None]:
    return lambda segment: call(first + segment)
