"""One collective call, parsed: what every algorithm works on."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.collectives.arguments.operations import Operation
from psgd.collectives.mpi.split import ALIGN_BYTES, split


@dataclass(slots=True, eq=False)
class Call:
    """What one rank passed to a collective, parsed.

    Attributes:
        verb: mpi4py's name of the collective.
        kind: of the elements.
        op: the reduction, or None.
        root: of Bcast and Reduce, else 0.
        send: 1-D values that this rank contributes; None where it contributes nothing.
        recv: 1-D memory for the result; None where there is none. May be `send`, otherwise does not overlap it.
        starts: the first element of each rank's chunk, in `recv` for gathers and in `send` for reductions; None where
            chunks are near-equal.
        lengths: the elements of each rank's chunk.
        nbytes: of the whole vector, what the choice of an algorithm goes by. The same on all ranks.
        longest: bytes of the longest chunk where `lengths` holds them, else `nbytes`. The same on all ranks.
        count: elements that must be the same number on all ranks.
        shape: for reports.
        mark: a word that must agree, see descriptor.fingerprint.
        finish: called after the collective has ended, in order: results go back to the caller's memory.
        copied: `send` is a copy of the values that the caller's memory had when the call was parsed.
        job: what the ring on GPUs needs beside that; None where arrays are on the host. `send` and `recv` are device
            addresses then, which the host must not read.
    """

    verb: str
    _: KW_ONLY
    kind: str = "?"
    op: Operation | None = None
    root: int = 0
    send: NDArray[Any] | None = None
    recv: NDArray[Any] | None = None
    starts: Sequence[int] | None = None
    lengths: Sequence[int] = ()
    count: int = 0
    shape: tuple[int, ...] = ()
    mark: int = 0
    nbytes: int = field(init=False)
    longest: int = field(init=False)
    finish: list[Callable[[], None]] = field(init=False, default_factory=list)
    copied: bool = field(init=False, default=False)
    job: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        item = self.itemsize
        self.nbytes = (self.count if self.starts is None else sum(self.lengths)) * item
        self.longest = max(self.lengths) * item if self.lengths else self.nbytes

    @property
    def itemsize(self) -> int:
        """Bytes of an element as algorithms see it."""
        array = self.send if self.send is not None else self.recv
        return 1 if array is None else array.itemsize

    def ranges(self, size: int) -> list[range]:
        """Each rank's chunk."""
        if self.starts is None:
            return split(self.count, size, max(1, ALIGN_BYTES // self.itemsize))
        return [range(start, start + n) for start, n in zip(self.starts, self.lengths, strict=True)]

    def table(self) -> NDArray[np.int64] | None:
        """Each rank's chunk as kernels read it, or None where chunks are near-equal."""
        if self.starts is None:
            return None
        table = np.empty((len(self.starts), 2), np.int64)
        table[:, 0] = self.starts
        table[:, 1] = self.lengths
        return table

    def done(self) -> None:
        """Puts results where the caller wants them."""
        for action in self.finish:
            action()
