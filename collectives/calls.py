"""One collective call, as its arguments say it: what every algorithm works on."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.collectives.operations import Operation


class Call:
    """What one rank passed to a collective, parsed.

    Attributes:
        verb: mpi4py's name of the collective.
        kind: of the elements.
        op: the reduction, or None.
        root: of Bcast and Reduce, else 0.
        send: 1-D values that this rank contributes; None where it contributes nothing.
        recv: 1-D memory for the result; None where there is none. May be `send`, otherwise does not overlap it.
        parts: for each rank the first element of its chunk and the chunk's length, in `recv` for gathers and in `send`
            for reductions.
        count: elements that must be the same number on all ranks.
        shape: for reports.
        tells: a word that must agree, see contract.fingerprint.
        finish: called after the collective has ended, in order: results go back to the caller's memory.
    """

    __slots__ = ("count", "finish", "kind", "op", "parts", "recv", "root", "send", "shape", "tells", "verb")

    def __init__(
        self,
        verb: str,
        *,
        kind: str = "?",
        op: Operation | None = None,
        root: int = 0,
        send: NDArray[Any] | None = None,
        recv: NDArray[Any] | None = None,
        parts: NDArray[np.int64] | None = None,
        count: int = 0,
        shape: tuple[int, ...] = (),
        tells: int = 0,
    ) -> None:
        self.verb = verb
        self.kind = kind
        self.op = op
        self.root = root
        self.send = send
        self.recv = recv
        self.parts = np.zeros((1, 2), np.int64) if parts is None else parts
        self.count = count
        self.shape = shape
        self.tells = tells
        self.finish: list[Callable[[], None]] = []

    @property
    def nbytes(self) -> int:
        """Bytes of the whole vector: what the choice of an algorithm goes by. The same on all ranks."""
        array = self.send if self.send is not None else self.recv
        return 0 if array is None else int(self.parts[:, 1].sum()) * array.itemsize

    def done(self) -> None:
        """Puts results where the caller wants them."""
        for action in self.finish:
            action()
