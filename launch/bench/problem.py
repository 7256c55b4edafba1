"""What a benchmarked collective is given and must give: whole numbers by a closed form, exact in every dtype."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALLREDUCE, REDUCE_SCATTER, ALLGATHER, BCAST = "allreduce", "reducescatter", "allgather", "bcast"
VERBS = {
    ALLREDUCE: "Allreduce",
    REDUCE_SCATTER: "Reduce_scatter_block",
    ALLGATHER: "Allgather",
    BCAST: "Bcast",
}
_BLOCK = 1 << 20
_MOST = 1 << 30
_REDUCE = {"sum": np.add, "mean": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


@dataclass(frozen=True)
class BenchOptions:
    """What is measured.

    Attributes:
        collective: a name such as ALLREDUCE.
        dtype: NumPy's name of it.
        op: sum, prod, min, max or mean; means nothing where nothing is reduced.
        algorithm: psgd's, by name; None leaves it to psgd.
        buffers: private, registered or both.
        repeats: timed rounds of a size; None chooses by how long one takes.
        peers: MPI and Gloo are measured too.
        device: cpu, or cuda for arrays on GPUs.
    """

    collective: str
    dtype: str = "float32"
    op: str = "sum"
    algorithm: str | None = None
    buffers: str = "both"
    repeats: int | None = None
    peers: bool = True
    device: str = "cpu"

    @property
    def reduces(self) -> bool:
        """Whether `op` means anything."""
        return self.collective in {ALLREDUCE, REDUCE_SCATTER}


class Problem:
    """One rank's part of one call of a size.

    Attributes:
        nbytes: of the whole vector, rounded up to whole elements, where it is cut into blocks for each rank alike.
        n: elements of the whole vector.
        block: elements of one rank's block.
        sends: elements that this rank passes.
        receives: elements that it gets.
        own: where its values lie in the buffer of a call in place.
        kept: where its result lies there.
    """

    def __init__(self, options: BenchOptions, nbytes: int, rank: int, size: int) -> None:
        self.collective, self.op, self.rank, self.size = options.collective, options.op, rank, size
        self.dtype = np.dtype(options.dtype)
        self.nbytes = whole_nbytes(options, nbytes, size)
        self.n = self.nbytes // self.dtype.itemsize
        self.block = self.n // size
        self.sends = self.block if self.collective == ALLGATHER else self.n
        self.receives = self.block if self.collective == REDUCE_SCATTER else self.n
        start = rank * self.block if self.collective == ALLGATHER else 0
        self.own, self.kept = slice(start, start + self.sends), slice(0, self.receives)
        self._modulus = _largest_prime(max(2, _span(options, size)))

    def source(self) -> NDArray[Any]:
        """What this rank contributes. In a broadcast all ranks know it, and the root sends it."""
        rank = 0 if self.collective == BCAST else self.rank
        return self._filled(self.sends, self._of(rank))

    def expected(self) -> NDArray[Any]:
        """What this rank must get, computed in float64."""
        if self.collective == BCAST:
            return self.source()
        if self.collective == ALLGATHER:
            result = np.empty(self.n, self.dtype)
            for rank in range(self.size):
                result[rank * self.block : (rank + 1) * self.block] = self._filled(self.block, self._of(rank))
            return result
        first = self.rank * self.block if self.collective == REDUCE_SCATTER else 0
        return self._filled(self.receives, lambda start, stop: self._reduced(first + start, first + stop))

    def _filled(self, n: int, values: Callable[[int, int], NDArray[Any]]) -> NDArray[Any]:
        result = np.empty(n, self.dtype)
        for start in range(0, n, _BLOCK):
            stop = min(n, start + _BLOCK)
            part = values(start, stop)
            # By way of int64, integers wrap as the collective's do.
            result[start:stop] = part.astype(np.int64) if self.dtype.kind in "iu" else part
        return result

    def _of(self, rank: int) -> Callable[[int, int], NDArray[np.int64]]:
        return lambda start, stop: self._values(rank, start, stop)

    def _values(self, rank: int, start: int, stop: int) -> NDArray[np.int64]:
        """A rank's values: a permutation of what fits, another one on each rank, and no shift of itself."""
        modulus = self._modulus
        index = np.arange(start, stop, dtype=np.int64)
        stride = 1 + 7919 * (rank + 1) % max(1, modulus - 1)
        values = (index * stride + index // modulus * 31 + rank * 613) % modulus
        if self.op == "prod":
            values += 1
        return values * self.size if self.op == "mean" else values

    def _reduced(self, start: int, stop: int) -> NDArray[np.float64]:
        result = self._values(0, start, stop).astype(np.float64)
        for rank in range(1, self.size):
            _REDUCE[self.op](result, self._values(rank, start, stop).astype(np.float64), out=result)
        if self.op == "mean":
            result /= self.size
        return result


def whole_nbytes(options: BenchOptions, nbytes: int, size: int) -> int:
    """Rounds a size up to whole elements, the same number for each rank where the collective cuts it."""
    item = np.dtype(options.dtype).itemsize
    unit = item * (1 if options.collective in {ALLREDUCE, BCAST} else size)
    return -(-nbytes // unit) * unit


def bus_factor(collective: str, size: int) -> float:
    """Bus bandwidth over nbytes / seconds, as NCCL's tests define it (nccl-tests, doc/PERFORMANCE.md).

    2(P-1)/P for allreduce, (P-1)/P for reduce-scatter and all-gather of nbytes in total, 1 for broadcast.
    """
    if collective == BCAST:
        return 1.0
    return (2.0 if collective == ALLREDUCE else 1.0) * (size - 1) / size


def _span(options: BenchOptions, size: int) -> int:
    """How many values there may be so that every partial result is exact in the dtype."""
    limits: dict[str, int] = {"float16": 2**11, "float32": 2**24, "float64": _MOST}
    limit: int = limits.get(options.dtype) or min(_MOST, int(np.iinfo(options.dtype).max))
    if not options.reduces or options.op in {"min", "max"}:
        return limit
    if options.op == "prod":
        return int(float(limit) ** (1 / size))
    return limit // (size if options.op == "sum" else size * size)


def _largest_prime(most: int) -> int:
    """The largest prime up to `most`, which is at least 2."""
    return next(n for n in range(most, 1, -1) if all(n % d for d in range(2, math.isqrt(n) + 1)))
