"""Who has which samples ahead, and what becomes of those of a worker that dies: each is taken once, by one worker.

Up to an epoch that nobody has begun, all that the dead one had left is shared out among the takers, who take it at
once; from that epoch on the takers share the epochs as if they had been that many all along. Nothing is computed
before the first death.
"""

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from psgd.training.survival.ahead import SamplesAhead

HEAD = 4
"""Words before the samples: the epoch from which shares are new, this one's place, of how many, and how many steps."""


class Ledger:
    """The server's account.

    Args:
        samples: of an epoch.
        seed: of their order.
        epochs: of the run.
        workers: how many there are at first.
        batch_size: of a worker's step.
    """

    def __init__(self, samples: int, seed: int, epochs: int, workers: int, batch_size: int) -> None:
        self._plans = {w: SamplesAhead(samples, seed, epochs, (w, workers)) for w in range(workers)}
        self._epochs, self._batch_size = epochs, batch_size
        # What workers take over once they have heard of it: with the samples that they will have drawn then, or not yet
        # known when that is.
        self._next: dict[int, deque[tuple[int, NDArray[np.int64]]]] = {w: deque() for w in range(workers)}
        self._unread: dict[int, list[NDArray[np.int64]]] = {w: [] for w in range(workers)}

    def begin(self, drawn: Sequence[int]) -> None:
        """So many samples each worker had drawn before this run, which counts from here."""
        for worker, plan in self._plans.items():
            plan.begin(drawn[worker])

    def lose(
        self, worker: int, applied: Sequence[int], waiting: Mapping[int, int], takers: Sequence[int]
    ) -> tuple[int, dict[int, NDArray[np.int64]]]:
        """A worker has died; the arguments and what is returned are those of `psgd.server.surviving.hand_over`."""
        for each, plan in self._plans.items():
            coming = self._next[each]
            while coming and coming[0][0] <= applied[each]:
                drawn, samples = coming.popleft()
                plan.advance(drawn)
                plan.take_over(samples)
            plan.advance(applied[each])
        known = [plan.horizon for plan in self._plans.values()]
        known += [self._plans[each].begun(drawn) for each, drawn in waiting.items()]
        begun = min(self._epochs, max(known))
        dead = self._plans.pop(worker)
        dead.reshare(begun, (0, 1))
        heard = [samples for _, samples in self._next.pop(worker)]
        left = np.concatenate([*heard, *self._unread.pop(worker), dead.rest()])
        steps = -(-len(left[:: len(takers)]) // self._batch_size)
        messages = {}
        for place, taker in enumerate(takers):
            share, mine = (place, len(takers)), left[place :: len(takers)]
            self._plans[taker].reshare(begun, share)
            self._unread[taker].append(mine)
            if taker in waiting:
                self.pushed(taker, waiting[taker])
            messages[taker] = np.concatenate([np.array([begun, *share, steps], np.int64), mine])
        return len(left), messages

    def pushed(self, worker: int, drawn: int) -> None:
        """The last push that a worker makes before it reads what it takes over."""
        self._next[worker].extend((drawn, samples) for samples in self._unread[worker])
        self._unread[worker].clear()
