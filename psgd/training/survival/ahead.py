"""The samples that one worker has ahead of it, as a server can tell from how many it has drawn.

A worker takes its share of one epoch after the other (`psgd.data.sampler`). What it takes over from one that died comes
at once, before what it had ahead.
"""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from psgd.data.sampler import order

Samples = NDArray[np.int64]


class SamplesAhead:
    """One worker's.

    Args:
        samples: of an epoch.
        seed: of their order.
        epochs: of the run.
        share: which place of how many the worker has: every so many-th sample, from that one on.
    """

    def __init__(self, samples: int, seed: int, epochs: int, share: tuple[int, int]) -> None:
        self._samples, self._seed, self._epochs, self._share = samples, seed, epochs, share
        self._pieces: deque[Samples] = deque()
        self._next_epoch = 0  # the first that is not in the pieces
        self._drawn = 0  # samples before the pieces

    @property
    def horizon(self) -> int:
        """The first epoch of which the worker can have nothing under way."""
        return self._next_epoch + (not self._pieces)

    def begun(self, drawn: int) -> int:
        """The first epoch of which the worker has nothing when it has drawn so many samples in all, or a later one.

        That may be more than it has advanced by, as where what it draws counts only once it has exchanged.
        """
        left = drawn - self._drawn - sum(map(len, self._pieces))
        if left <= 0:
            return self._next_epoch
        return self._next_epoch + -(-left // max(1, len(range(self._share[0], self._samples, self._share[1]))))

    def advance(self, drawn: int) -> None:
        """The worker has drawn so many samples in all. Orders of whole epochs that are behind it are not made."""
        ahead, self._drawn = drawn - self._drawn, drawn
        while ahead:
            if self._pieces:
                piece = self._pieces.popleft()
                if len(piece) > ahead:
                    self._pieces.appendleft(piece[ahead:])
                ahead -= min(ahead, len(piece))
                continue
            assert self._next_epoch < self._epochs, "more samples drawn than there are"
            size = len(range(self._share[0], self._samples, self._share[1]))
            if size <= ahead:
                ahead -= size
                self._next_epoch += 1
            else:
                self._draw()

    def begin(self, drawn: int) -> None:
        """So many samples were drawn before this run, which counts from here."""
        self.advance(drawn)
        self._drawn = 0

    def take_over(self, samples: Samples) -> None:
        """These come next."""
        if len(samples):
            self._pieces.appendleft(samples)

    def reshare(self, epoch: int, share: tuple[int, int]) -> None:
        """The worker's share from that epoch on; before it, all stays as it is."""
        while self._next_epoch < min(epoch, self._epochs):
            self._draw()
        self._share = share

    def rest(self) -> Samples:
        """All that is ahead in epochs before the one that `reshare` was called with."""
        return np.concatenate([np.empty(0, np.int64), *self._pieces])

    def _draw(self) -> None:
        index, parts = self._share
        self._pieces.append(order(self._samples, self._seed, self._next_epoch)[index::parts])
        self._next_epoch += 1
