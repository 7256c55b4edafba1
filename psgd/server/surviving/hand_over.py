"""What is done with the samples of a worker that died: the seam between a server and whoever knows of samples."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from psgd.runtime.ulfm.deaths import Deaths

Words = NDArray[np.int64]


class Lost(NamedTuple):
    """A worker has died: what a server's transport gives beside headers. Nothing of that worker comes after it."""

    worker: int


class HandOver(Protocol):
    """Shares out samples on the server, and takes them on a worker, which sets `ends`, and `rest` where there is any.

    Attributes:
        failures: of the mesh's world, on the server.
        also_lost: what goes with a worker that dies, beside its samples, for the warning; nothing at first.
        all_count: without servers, every worker has the run's counters; False at first.
    """

    failures: Deaths
    also_lost: str
    all_count: bool

    def waiting(self, act: Callable[..., Any], **when: Callable[[], object]) -> Callable[..., Any]:
        """The same call, in which the server waits for workers (`psgd.training.survival.stragglers`)."""

    def lost(
        self, worker: int, applied: Sequence[int], waiting: Mapping[int, int], takers: Sequence[int]
    ) -> tuple[int, dict[int, Words]]:
        """A worker has died; on the server.

        Args:
            worker: who.
            applied: of each worker, how many samples it had drawn at its newest push that was applied.
            waiting: those that wait for an answer, and how many samples they have drawn: they hear of this next.
            takers: who takes over what it had left.

        Returns:
            How many samples there are to take, and for each of the takers what it is to be told.
        """

    def started(self) -> None:
        """This rank has come through the start, which is made by all together: from now on others may die."""

    def lost_server(self, server: int) -> None:
        """A server has died, and others hold its shards; on the others and on workers, where there are replicas."""

    def not_survived(self) -> None:
        """Too many have died for the run to go on by itself, and this rank is about to say so with an error."""

    def lead(self, worker: int) -> None:
        """That worker is the first that lives: where there are no servers, it does what worker 0 has done."""

    def pushed(self, worker: int, drawn: int) -> None:
        """A worker that was told nothing yet has pushed, or is done; on the server."""

    def ends(self) -> bool:
        """A worker says that its steps are over: whether the run is, for all; else there may be more. Blocks."""

    def rest(self) -> bool:
        """A worker's steps are over: whether gradients were left that were not applied yet, and are now. Blocks."""

    def compute_again(self, before: int) -> None:
        """Computes a gradient of this worker again, which a round that was to add it has destroyed; on a worker.

        Args:
            before: it is that of the newest step, or of so many before it.
        """

    def receive(self, words: Words) -> None:
        """This worker was told that; on a worker."""


class Deciding(Protocol):
    """What a strategy must know beside `psgd.server.policy.Policy` so that a run survives the death of workers."""

    def on_lost(self, worker: int) -> None:
        """A worker has died: a push of it that waits is not going to be applied. `on_done` follows."""

    def on_back(self, workers: Sequence[int]) -> None:
        """All others are done or dead, and these, which were done, have got more samples: they push again."""
