"""A sampler for PyTorch's DataLoader in psgd's order: each sample exactly once an epoch, on whichever worker."""

import operator
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import torch.utils.data
from numpy.typing import NDArray

from psgd.data.sampler import order
from psgd.kernels.errors import UsageError

_FIXED = ("samples", "seed", "shuffle", "drop_last")


class WorkerSampler(torch.utils.data.Sampler[int]):  # type: ignore[misc]  # mypy does not see PyTorch
    """A worker's part of each epoch's order, in place of `torch.utils.data.DistributedSampler`: `psgd.torch.Sampler`.

    The order is one permutation drawn from (seed, epoch), that of `psgd train`; worker w of P takes every P-th entry
    of it from entry w on. Nothing is repeated to make parts equal: where P does not divide the samples, some workers
    have one less. With batches the numbers of steps may then differ by one, for which DDP needs `drop_last` or its
    `join`.

        sampler = psgd.torch.Sampler(dataset, comm, seed=1)
        loader = DataLoader(dataset, batch_size=64, sampler=sampler)
        for epoch in range(10):
            sampler.set_epoch(epoch)
            for x, y in loader: ...

    Args:
        samples: how many there are, or a dataset, whose length that is.
        workers: a communicator of the workers (psgd's or mpi4py's), what `psgd.connect` gives inside its block, or a
            pair (this worker, number of workers).
        seed: of the orders.
        shuffle: False takes the samples as they are, in every epoch.
        drop_last: leaves out the last samples of an order, less than one a worker, so that all have equally many.

    Attributes:
        epoch: whose order it gives.
        taken: samples of this epoch that it has given since the epoch was begun or resumed.
    """

    def __init__(
        self, samples: int | Sized, workers: Any, *, seed: int = 0, shuffle: bool = True, drop_last: bool = False
    ) -> None:
        self.samples = len(samples) if isinstance(samples, Sized) else operator.index(samples)
        self.worker, self.workers = _place(workers)
        if self.samples < 1 or not 0 <= self.worker < self.workers:
            raise UsageError(
                f"psgd.torch.Sampler: expected samples and workers of 1 or more and 0 <= worker < workers, got "
                f"{self.samples} samples, {self.workers} workers, worker {self.worker}"
            )
        self.seed, self.shuffle, self.drop_last = seed, shuffle, drop_last
        self.epoch, self.taken = 0, 0
        self._history: list[list[int]] = []  # of this epoch, before it was resumed: what each worker had taken

    def __len__(self) -> int:
        """Samples that this worker has in this epoch, or has left of one that was resumed."""
        total = self.samples - sum(map(sum, self._history))
        if self.drop_last:
            return total // self.workers
        return len(range(self.worker, total, self.workers))

    def __iter__(self) -> Iterator[int]:
        """This worker's samples, from the epoch's start or from where it was resumed."""
        self.taken = 0
        for sample in self._left()[self.worker :: self.workers][: len(self)].tolist():
            self.taken += 1
            yield sample

    def set_epoch(self, epoch: int) -> None:
        """Turns to an epoch, 0 or more; the one that was resumed stays resumed."""
        if epoch != self.epoch:
            self.epoch, self.taken, self._history = epoch, 0, []

    def state_dict(self, taken: int | None = None) -> dict[str, Any]:
        """Where this worker is in the epoch.

        Args:
            taken: samples that it has trained on in this epoch, since the start or where it was resumed. By default as
                many as were given, which is right for a DataLoader without workers of its own: those fetch ahead.

        Raises:
            UsageError: more than it has.
        """
        count = self.taken if taken is None else taken
        if not 0 <= count <= len(self):
            raise UsageError(f"psgd.torch.Sampler: taken: expected 0 to {len(self)} samples, got {count}")
        fixed = {name: getattr(self, name) for name in _FIXED}
        place = {"worker": self.worker, "workers": self.workers}
        return {
            **fixed,
            **place,
            "epoch": self.epoch,
            "taken": count,
            "history": [list(each) for each in self._history],
        }

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continues an epoch, with any number of workers: what is left of it is dealt out anew.

        Args:
            state: one worker's, where all had taken equally many (as with DDP, or `sync`); or all workers' states.

        Raises:
            UsageError: it is of other samples, another seed or the like, or states are missing.
        """
        states = [state] if isinstance(state, Mapping) else list(state)
        first = states[0]
        for name in _FIXED:
            if any(each[name] != getattr(self, name) for each in states):
                raise UsageError(
                    f"psgd.torch.Sampler: expected a state of {name}={getattr(self, name)!r}, got {first[name]!r}"
                )
        workers, begun = first["workers"], (first["epoch"], first["history"])
        if len(states) > 1 or workers == 1:
            if sorted(each["worker"] for each in states) != list(range(workers)):
                got = sorted(each["worker"] for each in states)
                raise UsageError(f"psgd.torch.Sampler: expected states of {workers} workers, got those of {got}")
            if any((each["epoch"], each["history"]) != begun for each in states):
                raise UsageError("psgd.torch.Sampler: expected states of one epoch, got several")
            taken = [each["taken"] for each in sorted(states, key=lambda each: each["worker"])]
        else:
            total = self.samples - sum(map(sum, first["history"]))
            taken = [min(first["taken"], len(range(w, total, workers))) for w in range(workers)]
        self.epoch, self.taken = first["epoch"], 0
        self._history = [list(each) for each in first["history"]] + ([taken] if any(taken) else [])

    def _left(self) -> NDArray[np.int64]:
        """What nobody had taken before the epoch was resumed, in its order."""
        left = order(self.samples, self.seed, self.epoch) if self.shuffle else np.arange(self.samples)
        for taken in self._history:
            keep = np.ones(left.size, np.bool_)
            for worker, count in enumerate(taken):
                keep[worker :: len(taken)][:count] = False
            left = left[keep]
        return left


def _place(workers: Any) -> tuple[int, int]:
    """This worker's number, and how many there are."""
    if isinstance(workers, tuple) and len(workers) == 2:
        return int(workers[0]), int(workers[1])
    if hasattr(workers, "Get_rank"):
        return workers.Get_rank(), workers.Get_size()
    if hasattr(workers, "worker") and hasattr(workers, "workers"):
        return workers.worker, workers.workers
    raise UsageError(
        "psgd.torch.Sampler: workers: expected a communicator, what psgd.connect gives, or (worker, workers), got "
        f"{type(workers).__name__}"
    )
