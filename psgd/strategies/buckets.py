"""The gradient of a step in buckets, which are summed over all workers while backward still computes.

Every worker adds samples * gradient, over one step or several, and the sum over the workers follows. A bucket is
all-reduced as soon as its part of the gradient is final, in the order in which backward makes them: from the vector's
end to its start. Each has a persistent call, bound to its memory once; a step only starts it. On a GPU the whole
vector is one bucket, whose all-reduce is put on the stream behind the gradient: the host waits for neither.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.split import ALIGN_BYTES, split
from psgd.kernels import accumulate as kernels
from psgd.kernels.errors import UsageError
from psgd.runtime.device_vectors import on_device, registered

if TYPE_CHECKING:
    from psgd.collectives import Communicator
    from psgd.collectives.fastpath.persistent import Prequest

Vector = NDArray[np.floating]

BUCKET_BYTES = 1 << 20
"""Largest part that is all-reduced at once during backward. The last one is never hidden, so it should be short; below
about this size a call's own cost shows. A core's second cache holds it, so it is weighed where it was made."""


class Buckets:
    """One worker's sum. Creating is collective, blocks.

    Args:
        comm: the workers; it stays the caller's.
        like: a vector of the size, dtype and device of the gradient.
        steps: of a worker, whose gradients make one sum.

    Attributes:
        sum: the sum over all workers, once `reduce` has returned.
        grads: where a step's gradient is to be written: with one step to a sum it is `sum` itself, so that the
            all-reduce takes place where the gradient lies.
        unit: gradients are weighed by samples / unit. A power of two that divides them changes no bit of a sum, only
            its exponent; for batches of a power of two the weight is 1, which needs no pass over the vector.
        overlaps: the all-reduce runs during backward.
        early: it is started before the workers know whether any had samples.
        ranges: of the vector, one for each bucket, in order.
    """

    def __init__(self, comm: "Communicator", like: Vector, steps: int) -> None:
        self._comm, self._steps = comm, steps
        self.unit = 1
        self.sum = registered(comm, like)
        self.grads: Vector = self.sum if steps == 1 else np.zeros_like(like)
        self._enqueues = on_device(like)
        self._cut()
        self._weighed = 0  # buckets that have this step's gradient
        self._launched = 0  # buckets whose reduction was started
        self._announced = 0  # samples of the gradient that is on its way through `overlap`
        self._final = 0  # the gradient's elements from here on are final
        self._added = self._samples = 0  # steps and samples in the sum, before this step
        none = self.sum[:0]
        kernels.weigh(none, none, 1.0)
        kernels.add_weighted(none, none, 1.0)

    def _cut(self) -> None:
        """Decides on the buckets, and makes their calls. Collective."""
        count = max(1, -(-self.sum.nbytes // BUCKET_BYTES))
        self.overlaps = count > 1 and not self._enqueues and self._comm.threaded_on_all()
        self.early = self.overlaps or self._enqueues
        align = max(1, ALIGN_BYTES // self.sum.dtype.itemsize)
        self.ranges = split(self.sum.size, count, align) if self.overlaps else [range(self.sum.size)]
        ranges = self.ranges[::-1]
        self._buckets = [(r.start, self.sum[r.start : r.stop], self.grads[r.start : r.stop]) for r in ranges]
        self._calls = self._bound()

    def _bound(self) -> "list[Prequest]":
        """A persistent call for each bucket, in the order of their launch; none where they are enqueued. Collective."""
        parts = [] if self._enqueues else [part for _, part, _ in self._buckets]
        return [self._comm.Allreduce_init(MPI.IN_PLACE, part) for part in parts]

    def compile(self) -> None:
        """Makes each call on zeros, so that no step waits for what compiles at the first one. Collective, blocks."""
        for call in self._calls:
            call.run()
        if self._enqueues:
            self._comm.Allreduce_enqueue(MPI.IN_PLACE, self.sum)

    def overlap(self, samples: int) -> Callable[[range], None] | None:
        """Announces a gradient of so many samples.

        Returns:
            A function to call with each range of it that is final; None without a progress thread on all workers, for
            a vector of one bucket, and for steps that only add.
        """
        if not self.overlaps or not samples or self._added + 1 < self._steps:
            return None
        if self._weighed:
            raise UsageError("overlap: a gradient is already being reduced: call step() before the next one")
        self._announced, self._final = samples, self.sum.size
        return self._ready

    def _ready(self, part: range) -> None:
        """Starts the buckets that are final with this range of the gradient."""
        if not part:
            return
        if not self._announced or part.stop != self._final:
            expected = f"a range that ends at {self._final}" if self._announced else "overlap() before each gradient"
            raise UsageError(
                f"overlap: expected {expected} (ranges come from the vector's end to its start), got {part}"
            )
        self._final = part.start
        while self._weighed < len(self._buckets) and self._buckets[self._weighed][0] >= part.start:
            self._launch(self._announced)

    def add(self, samples: int) -> bool:
        """Adds a step's gradient, but for what `overlap` has started; returns whether the sum is complete.

        With a complete one, `start` and `reduce` or `clear` have to follow.
        """
        if self._weighed and self._announced != samples:
            raise UsageError(
                f"step: expected the {self._announced} samples that were passed to overlap(), got {samples}"
            )
        if self._added + 1 == self._steps:
            return True
        while self._weighed < len(self._buckets):
            self._weigh(samples)
        self._weighed = 0
        self._added += 1
        self._samples += samples
        return False

    def launch(self, samples: int) -> None:
        """Adds what is left of the last step's gradient; where it is `early`, starts to reduce it."""
        for bucket in range(len(self._buckets)):
            if bucket >= self._weighed:
                self._weigh(samples)
            if self.early and bucket >= self._launched:
                self._start(bucket)

    def wait(self) -> None:
        """Returns when all that was launched is reduced, or will be before what is put on the GPU's stream next."""
        for call in self._calls[: self._launched]:
            call.Wait()
        self._launched = 0

    def reduce(self) -> None:
        """Reduces the sum, where it is not `early`. Collective, blocks."""
        self._calls[0].run()

    def complete(self, samples: int, exchange: Callable[[float | None], int]) -> int:
        """Makes the sum over all workers, of the gradient of so many samples that was not added yet, and clears up.

        Args:
            samples: of it.
            exchange: tells all workers of the round, and returns how many samples all of them had: with the time at
                which the sum was begun, where it is made by then.

        Returns:
            Those samples; where there are none, `sum` may have been left as it was.
        """
        began = time.perf_counter()
        self.launch(samples)
        if self.early:
            self.wait()
            total = exchange(began)
        else:  # in this order a round without samples moves nothing
            total = exchange(None)
            if total:
                self.reduce()
        self.clear()
        return total

    def clear(self) -> None:
        """The sum has been used: the next step begins another."""
        self._weighed = self._announced = self._added = self._samples = 0

    def free(self) -> None:
        """Ends the calls."""
        for call in self._calls:
            call.Free()

    def _weigh(self, samples: int) -> None:
        """Adds this step's gradient to the next bucket of the sum, weighed by its samples."""
        _, into, grad = self._buckets[self._weighed]
        self._weighed += 1
        weight = samples / self.unit
        if not samples:
            if not self._samples:
                into.fill(0)
        elif self._samples:
            kernels.add_weighted(into, grad, weight)
        elif self._steps > 1:
            kernels.weigh(into, grad, weight)
        elif weight != 1.0:
            np.multiply(into, into.dtype.type(weight), out=into)

    def _launch(self, samples: int) -> None:
        bucket = self._weighed
        self._weigh(samples)
        self._start(bucket)

    def _start(self, bucket: int) -> None:
        if self._enqueues:
            self._comm.Allreduce_enqueue(MPI.IN_PLACE, self.sum)
        else:
            self._calls[bucket].Start()
            self._launched += 1
