"""One rank's part in going on without the dead: what is asked of it by the server's loop, or by the worker's."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.config import TrainConfig
from psgd.connection import Connection
from psgd.kernels.notice import say
from psgd.metrics.run_metrics import RunMetrics
from psgd.runtime.mesh import Mesh
from psgd.runtime.ulfm import switch
from psgd.runtime.ulfm.deaths import MpiDeaths
from psgd.runtime.ulfm.tolerance import TOLERANCE
from psgd.strategies import going_on
from psgd.training.survival.course import Course
from psgd.training.survival.duties import Duties
from psgd.training.survival.ledger import Ledger


class Survival:
    """Implements `psgd.server.surviving.hand_over.HandOver`, on all ranks.

    Args:
        config: of the run.
        mesh: of the run.
        samples: of an epoch.
        metrics: the run's; says when.
        duties: who leads tells of deaths.
        course: a worker's batches; None on a server.

    Attributes:
        gone: workers that have died, as far as this rank counts them.
        failures: of the mesh's world.
    """

    def __init__(
        self, config: TrainConfig, mesh: Mesh, samples: int, metrics: RunMetrics, duties: Duties, course: Course | None
    ) -> None:
        self.gone: list[int] = []
        self.failures = MpiDeaths(mesh.world)
        self._mesh, self._metrics, self._duties, self._course = mesh, metrics, duties, course
        self._ledger = Ledger(samples, config.seed, config.epochs, mesh.workers, config.batch_size)

    @property
    def lost_ranks(self) -> list[int]:
        """Ranks of the job that have died."""
        return self._ranks(self.gone)

    def begin(self, job: MPI.Intracomm) -> None:
        """From now on, workers may die. `job` is all ranks."""
        self._job = job
        TOLERANCE.allow(self._ranks(range(self._mesh.workers)))

    def end(self, job: MPI.Intracomm) -> MPI.Intracomm:
        """From now on, no more may die. Collective over those of `job` that live, blocks.

        Returns:
            These; the one that leads is its rank 0.
        """
        failures = MpiDeaths(job)
        living = self._duties.first(failures.shrink())
        alive = living.Get_group().Translate_ranks(None, job.Get_group())
        TOLERANCE.allow(set(range(job.Get_size())) - set(alive))
        TOLERANCE.survivors = living
        return living

    def lost(
        self, worker: int, applied: Sequence[int], waiting: Mapping[int, int], takers: Sequence[int]
    ) -> tuple[int, dict[int, NDArray[np.int64]]]:
        samples, messages = self._ledger.lose(worker, applied, waiting, takers)
        self.tell(worker, samples)
        return samples, messages

    def tell(self, worker: int, samples: int) -> None:
        """Counts a death, writes it to the log and says it, where this rank leads."""
        self.gone.append(worker)
        seconds, left = self._metrics.elapsed_s(), self._mesh.workers - len(self.gone)
        rank = self._ranks([worker])[0]
        cause = "its process ended"
        if not self._duties.leads:
            return
        log = self._duties.log
        log.write("lost", time=seconds, worker=worker, rank=rank, cause=cause, samples=samples, workers_left=left)
        say(
            f"warning: worker {worker} (rank {rank}) is lost after {seconds:.2f} s, {cause}: {left} go on, and take "
            f"the {samples:,} samples that it had left"
        )

    def lead(self, worker: int) -> None:
        if self._mesh.role == "worker" and worker == self._mesh.index and not self._duties.leads:
            self._duties.take_over()
            say(f"warning: rank {self._job.Get_rank()} goes on with the log, the progress and the result")

    def _ranks(self, workers: Iterable[int]) -> list[int]:
        """Their ranks in the job."""
        ranks = [self._mesh.worker_rank(worker) for worker in workers]
        return list(self._mesh.world.Get_group().Translate_ranks(ranks, self._job.Get_group()))

    def pushed(self, worker: int, drawn: int) -> None:
        self._ledger.pushed(worker, drawn)

    def receive(self, words: NDArray[np.int64]) -> None:
        assert self._course is not None
        self._course.receive(words)

    @property
    def ends(self) -> Callable[[], bool]:
        """What asks whether the run is over."""
        assert self._course is not None
        return self._course.ends

    @ends.setter
    def ends(self, ask: Callable[[], bool]) -> None:
        assert self._course is not None
        self._course.ends = ask


def prepare(
    connection: Connection,
    job: MPI.Intracomm,
    config: TrainConfig,
    duties: Duties,
    course: Callable[[int, int], Course] | None,
) -> None:
    """From now on, workers may die, where MPI and the run go on without them. On all ranks; does not communicate.

    Args:
        connection: before its block.
        job: all ranks.
        config: of the run.
        duties: of this rank.
        course: a worker's batches, from how many workers there are and which it is; None on a server.
    """
    mesh, metrics = connection.mesh, connection.metrics
    if switch.enabled() and going_on.survives(config.flat(), mesh.servers, mesh.workers):
        mine = None if course is None else course(mesh.workers, mesh.index)
        mesh.survival = survival = Survival(config, mesh, metrics.samples_per_epoch, metrics, duties, mine)
        survival.begin(job)
