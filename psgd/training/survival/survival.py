"""One rank's part in going on without the dead: what is asked of it by the server's loop, or by the worker's."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.config import TrainConfig
from psgd.connection import Connection
from psgd.data.sampler import Sampler
from psgd.kernels.notice import say
from psgd.metrics.event_log import EventLog
from psgd.metrics.run_metrics import RunMetrics
from psgd.runtime.mesh import Mesh
from psgd.runtime.ulfm import switch
from psgd.runtime.ulfm.deaths import MpiDeaths
from psgd.runtime.ulfm.tolerance import TOLERANCE
from psgd.strategies import going_on
from psgd.training.survival.course import Course
from psgd.training.survival.ledger import Ledger


class Survival:
    """Implements `psgd.server.surviving.hand_over.HandOver`, on all ranks.

    Args:
        config: of the run.
        mesh: of the run.
        samples: of an epoch.
        metrics: the run's; says when.
        log: where deaths are written, on rank 0.
        course: a worker's batches; None on a server.

    Attributes:
        gone: workers that have died, as far as this rank counts them.
        failures: of the mesh's world.
    """

    def __init__(
        self, config: TrainConfig, mesh: Mesh, samples: int, metrics: RunMetrics, log: EventLog, course: Course | None
    ) -> None:
        self.gone: list[int] = []
        self.failures = MpiDeaths(mesh.world)
        self._mesh, self._metrics, self._log, self._course = mesh, metrics, log, course
        self._config, self._samples = config, samples
        self._ledger = Ledger(samples, config.seed, config.epochs, mesh.workers, config.batch_size)

    def shares(self) -> list[Sampler]:
        """Each worker's part of the samples, before any has died."""
        config, workers = self._config, self._mesh.workers
        return [Sampler(self._samples, workers, w, config.batch_size, config.seed) for w in range(workers)]

    def resume_at(self, step: int) -> None:
        """The run resumes: this worker has so many steps behind it. Collective over the workers, blocks."""
        comm = self._mesh.worker
        if self._mesh.servers or comm is None:  # who counts the samples is told otherwise
            return
        mine = self.shares()[self._mesh.index].drawn(step)
        everyone = np.empty(self._mesh.workers, np.int64)
        cast(MPI.Intracomm, comm).Allgather(np.array([mine], np.int64), everyone)
        self.resume(everyone.tolist())

    def resume(self, drawn: Sequence[int]) -> None:
        """The run resumes: so many samples each worker had drawn before, and counts from here."""
        self._ledger.begin(drawn)

    @property
    def lost_ranks(self) -> list[int]:
        """Ranks of the job that have died."""
        return self._ranks(self.gone)

    def begin(self, job: MPI.Intracomm) -> None:
        """From now on, workers may die. `job` is all ranks."""
        self._job = job
        TOLERANCE.allow(rank for rank in self._ranks(range(self._mesh.workers)) if rank != 0)

    def end(self, job: MPI.Intracomm) -> MPI.Intracomm:
        """From now on, no more may die. Collective over those of `job` that live, blocks; returns these."""
        failures = MpiDeaths(job)
        living: MPI.Intracomm = failures.shrink()
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
        """Counts a death, writes it to the log and says it. On rank 0."""
        self.gone.append(worker)
        seconds, left = self._metrics.elapsed_s(), self._mesh.workers - len(self.gone)
        rank = self._ranks([worker])[0]
        cause = "its process ended"
        self._log.write("lost", time=seconds, worker=worker, rank=rank, cause=cause, samples=samples, workers_left=left)
        if self._job.Get_rank():
            return
        say(
            f"warning: worker {worker} (rank {rank}) is lost after {seconds:.2f} s, {cause}: {left} go on, and take "
            f"the {samples:,} samples that it had left"
        )

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
    log: EventLog,
    course: Callable[[int, int], Course] | None,
) -> None:
    """From now on, workers may die, where MPI and the run go on without them. On all ranks; does not communicate.

    Args:
        connection: before its block.
        job: all ranks.
        config: of the run.
        log: where deaths are written, on rank 0.
        course: a worker's batches, from how many workers there are and which it is; None on a server.
    """
    mesh, metrics = connection.mesh, connection.metrics
    if switch.enabled() and going_on.survives(config.flat(), mesh.servers, mesh.workers):
        mine = None if course is None else course(mesh.workers, mesh.index)
        mesh.survival = survival = Survival(config, mesh, metrics.samples_per_epoch, metrics, log, mine)
        survival.begin(job)
        found = connection.resumed_from
        if found is not None and mesh.role == "server" and not found.manifest.has_workers(mesh.workers):
            # All begin at the same step, and are counted from there; else each is, from where it was.
            survival.resume([each.drawn(each.steps_behind(found.manifest.samples)) for each in survival.shares()])
