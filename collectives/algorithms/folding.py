"""Making any number of ranks a power of two, for algorithms that pair ranks by the bits of their number.

With P ranks and p the largest power of two up to P, the first P - p pairs (0, 1), (2, 3), ... act as one: the even
rank's values are combined into the odd one's, and it gets the result from there. Who takes part is numbered anew: that
is its place. Places keep the order of ranks, so blocks of consecutive places are blocks of consecutive ranks.
"""

from collections.abc import Generator
from typing import Any

from numpy.typing import NDArray

from psgd.collectives.algorithms.channel import Channel
from psgd.collectives.arguments.operations import Operation
from psgd.collectives.mpi.wait import Steps, Test


class Folding:
    """One rank's place.

    Args:
        rank: this rank.
        size: all ranks, P.

    Attributes:
        places: p.
        place: of this rank, from 0 on; meaningless where the rank sits out.
        bits: 1, 2, 4, ... below p.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.places = 1 << (size.bit_length() - 1)
        self._pairs = size - self.places
        self._rank = rank
        self._paired = rank < 2 * self._pairs
        self.place = rank // 2 if self._paired else rank - self._pairs
        self.bits = [1 << i for i in range(size.bit_length() - 1)]

    def partner(self, bit: int) -> int:
        """The rank whose place differs from this one's by `bit`."""
        place = self.place ^ bit
        return 2 * place + 1 if place < self._pairs else place + self._pairs

    def before(
        self, channel: Channel, send: NDArray[Any], recv: NDArray[Any], came: NDArray[Any], op: Operation
    ) -> Generator[Test, None, NDArray[Any] | None]:
        """Folds; returns the values that this rank continues with, in `send` or `recv`, or None where it sits out.

        Args:
            channel: the ranks.
            send: this rank's values.
            recv: takes the combined values; may be `send`.
            came: takes those of the other, same size.
            op: the reduction.
        """
        if not self._paired:
            return send
        if self._rank % 2 == 0:
            yield channel.send(self._rank + 1, send)
            return None
        yield channel.receive(self._rank - 1, came)
        op.combine(recv, came, send)
        return recv

    def after(self, channel: Channel, recv: NDArray[Any]) -> Steps:
        """Brings the result in `recv` to the ranks that sat out."""
        if self._paired:
            yield channel.receive(self._rank + 1, recv) if self._rank % 2 == 0 else channel.send(self._rank - 1, recv)
