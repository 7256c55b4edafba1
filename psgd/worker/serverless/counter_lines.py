"""A cache line of counters for each of some workers, in memory that they share, so that no message is sent to count."""

import numpy as np
from numpy.typing import NDArray

from psgd.collectives.mpi.node import address_of
from psgd.kernels.memory import counters as kernels
from psgd.metrics.totals import Sums

BYTES = kernels.LINE_BYTES


class CounterLines:
    """One worker's view of them.

    Args:
        memory: `BYTES` for each worker, uint8, zero at first; it begins a cache line.
        place: of this worker among them; it alone writes to its line.
    """

    def __init__(self, memory: NDArray[np.uint8], place: int) -> None:
        self.place = place
        self._at = address_of(memory)
        self._lines = memory.view(np.int64).reshape(-1, kernels.LINE_WORDS)
        self._losses = self._lines.view(np.float64)[:, kernels.LOSS]
        self._size = len(self._lines)

    def count(self, samples: int, loss: float) -> None:
        """Counts a step of this worker, once its update is written; `loss` is the mean over its samples."""
        kernels.count(self._at, self.place, samples, float(loss))

    def put(self, word: int, value: int) -> None:
        """Writes a word of this worker's line."""
        kernels.put(self._at, self.place, word, value)

    def word(self, place: int, word: int) -> int:
        """A word of a worker's line."""
        return int(self._lines[place, word])

    def put_for(self, place: int, word: int, value: int) -> None:
        """Writes a word of another worker's line, which that does not write itself or no more."""
        kernels.put(self._at, place, word, value)

    def totals(self) -> tuple[int, int, int, int]:
        return kernels.totals(self._at, self._size)

    def sums(self) -> Sums:
        """Of all workers."""
        steps, samples = self._lines[:, kernels.STEPS : kernels.SAMPLES + 1].sum(0).tolist()
        return Sums(steps, samples, float(self._losses.sum()))

    def steps(self) -> list[int]:
        """Of each worker."""
        steps: list[int] = self._lines[:, kernels.STEPS].tolist()
        return steps

    def active(self) -> list[int]:
        """The places of the workers that are not done."""
        places: list[int] = np.flatnonzero(self._lines[:, kernels.DONE] == 0).tolist()
        return places

    def samples(self) -> list[int]:
        """Of each worker."""
        samples: list[int] = self._lines[:, kernels.SAMPLES].tolist()
        return samples

    def done(self, places: list[int]) -> bool:
        """Whether these workers are."""
        return bool(self._lines[places, kernels.DONE].all())

    def request(self) -> int:
        """The largest of any worker's for a checkpoint."""
        return int(self._lines[:, kernels.WISH].max())

    def line(self, place: int) -> Sums:
        """A worker's steps, samples, and the sum of its losses."""
        steps, samples = self._lines[place, kernels.STEPS : kernels.SAMPLES + 1].tolist()
        return Sums(steps, samples, self._losses[place].item())

    def set_line(self, sums: Sums) -> None:
        """Writes this worker's, before anybody counts."""
        self.put(kernels.STEPS, sums.steps)
        self.put(kernels.SAMPLES, sums.samples)
        self._losses[self.place] = sums.loss

    def all_done(self) -> bool:
        """Whether all are. All that they wrote is there to be read then."""
        return self.totals()[2] == self._size

    def compile(self) -> None:
        """Compiles what steps need. Changes nothing."""
        kernels.count(address_of(np.zeros(kernels.LINE_WORDS, np.int64)), 0, 0, 0.0)
        kernels.put(address_of(np.zeros(kernels.LINE_WORDS, np.int64)), 0, kernels.STEPS, 0)
        self.totals()
