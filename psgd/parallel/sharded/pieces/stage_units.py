"""One stage's units among those of a rank with several: what `by_unit` needs of an exchange."""

from collections.abc import Sequence

from psgd.kernels.array import Array
from psgd.parallel.sharded.exchange import Exchange
from psgd.parallel.sharded.slices import Slices


class StageUnits:
    """Units of one stage, counted from 0.

    Args:
        exchange: of all units of the rank.
        first: the stage's first one.
        ranges: of the stage's units, in its own vector.

    Attributes:
        slices: of the stage's vector.
        params: as of the exchange.
        parameters, gradients: for each unit where they are.
    """

    def __init__(self, exchange: Exchange, first: int, ranges: Sequence[range]) -> None:
        mine = slice(first, first + len(ranges))
        self.slices = Slices(ranges, exchange.slices.ranks, exchange.slices.rank)
        self.params: Array = exchange.params
        self.parameters, self.gradients = exchange.parameters[mine], exchange.gradients[mine]
        self._exchange, self._first = exchange, first

    def arrive(self, unit: int, backward: bool = False) -> None:
        """As `Exchange.arrive`."""
        self._exchange.arrive(self._first + unit, backward)

    def leave(self, unit: int, backward: bool = False) -> None:
        """As `Exchange.leave`."""
        self._exchange.leave(self._first + unit, backward)

    def used(self, unit: int) -> None:
        """As `Exchange.used`."""
        self._exchange.used(self._first + unit)
