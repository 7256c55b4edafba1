"""All-gathers of units, each bound once to where it comes from and where it goes: N ranks, U elements, U (N - 1)/N."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from psgd.kernels.array import Array
from psgd.parallel.sharded.order import Behind, ordered
from psgd.parallel.sharded.slices import Slices

if TYPE_CHECKING:
    from psgd.collectives import Communicator


class Gathers:
    """Creating is collective, blocks.

    Args:
        comm: the ranks that share the vector.
        slices: of this rank.
        own: for each unit this rank's part of it; may lie in its place in the whole unit.
        whole: for each unit where it is to be.
        behind: of exchanges with this communicator.

    Attributes:
        nbytes: received so far; all ranks together as many as they have sent.
    """

    def __init__(
        self, comm: "Communicator", slices: Slices, own: Sequence[Array], whole: Sequence[Array], behind: Behind
    ) -> None:
        self.nbytes = 0
        self._behind = behind
        self._each = [int(w.nbytes - o.nbytes) for w, o in zip(whole, own, strict=True)]
        calls = [
            comm.Allgatherv_init(part, [unit, list(slices.counts(number))])
            for number, (part, unit) in enumerate(zip(own, whole, strict=True))
        ]
        self._calls = ordered(behind, calls)

    def start(self, unit: int) -> None:
        """Begins to gather. Does not block."""
        with self._behind():
            self._calls[unit].Start()
        self.nbytes += self._each[unit]

    def wait(self, unit: int) -> None:
        """The unit is whole for what is computed from now on; at once where nothing was started.

        Blocks, but for GPUs that are peers.
        """
        self._calls[unit].Wait()

    def changed(self) -> None:
        """Parts are about to change, or may have since the last gather. Each rank calls it at the same place."""

    def free(self) -> None:
        """Ends the calls, none of which may be under way."""
        for call in self._calls:
            call.Free()
