"""Which samples a worker takes at which step of which epoch."""

import numpy as np
from numpy.typing import NDArray

from psgd.kernels.errors import UsageError
from psgd.runtime.rng import generator


class Sampler:
    """The order of each epoch, shared out among the workers.

    An epoch's order is one permutation drawn from (seed, epoch), the same on all ranks. Worker w takes every
    workers-th entry of it from entry w on, in batches. So at step s the workers' batches together are
    order[s * batch_size * workers : (s + 1) * batch_size * workers], just what one worker with workers times
    the batch would take. Each sample is taken once an epoch. All workers have the same number of
    steps; where the samples do not divide, the last batches of some are shorter or empty.

    Attributes:
        steps: steps of an epoch, ceil(ceil(samples / workers) / batch_size).
    """

    def __init__(self, samples: int, workers: int, worker: int, batch_size: int, seed: int) -> None:
        if samples < 1 or workers < 1 or batch_size < 1 or not 0 <= worker < workers:
            raise UsageError(
                f"Sampler: expected samples, workers, batch_size of 1 or more and 0 <= worker < workers, got "
                f"samples={samples}, workers={workers}, batch_size={batch_size}, worker={worker}"
            )
        self.samples = samples
        self.workers = workers
        self.worker = worker
        self.batch_size = batch_size
        self.seed = seed
        longest_shard = -(-samples // workers)
        self.steps = -(-longest_shard // batch_size)
        self._epoch: int | None = None
        self._shard = np.empty(0, np.int64)

    def batch(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Returns the samples of one step, a contiguous read-only view of length 0 to batch_size.

        The permutation is drawn at the first call for an epoch; later calls cost nothing. Views of an earlier
        epoch stay valid.

        Args:
            epoch: 0 or more.
            step: 0 to steps - 1.

        Raises:
            IndexError: another step.
        """
        if not 0 <= step < self.steps:
            raise IndexError(f"Sampler.batch: step {step} of an epoch with {self.steps} steps")
        if epoch != self._epoch:
            self._shard = np.ascontiguousarray(order(self.samples, self.seed, epoch)[self.worker :: self.workers])
            self._shard.flags.writeable = False
            self._epoch = epoch
        return self._shard[step * self.batch_size : (step + 1) * self.batch_size]

    def drawn(self, steps: int) -> int:
        """How many samples this worker draws in its first so many steps."""
        epochs, more = divmod(steps, self.steps)
        share = len(range(self.worker, self.samples, self.workers))
        return epochs * share + min(more * self.batch_size, share)

    def steps_behind(self, samples: int) -> int:
        """How many steps each worker has behind it once all have drawn so many samples together, rounded down."""
        epochs, more = divmod(samples, self.samples)
        return epochs * self.steps + more // (self.batch_size * self.workers)


def order(samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Returns the order of an epoch: a permutation of range(samples), the same wherever it is drawn."""
    return generator(seed, "order", epoch).permutation(samples).astype(np.int64, copy=False)
