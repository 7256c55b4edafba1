"""One rank's part in going on without the dead: what is asked of it by the server's loop, or by the worker's."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.config import TrainConfig
from psgd.connection import Connection
from psgd.data.sampler import Sampler
from psgd.kernels.errors import AgreedUsageError, PeerLostError
from psgd.kernels.notice import counted, say
from psgd.metrics.run_metrics import RunMetrics
from psgd.runtime.mesh import Mesh
from psgd.runtime.ulfm import switch
from psgd.runtime.ulfm.deaths import MpiDeaths
from psgd.runtime.ulfm.survivors import Survivors
from psgd.runtime.ulfm.tolerance import TOLERANCE
from psgd.strategies import going_on
from psgd.training.survival.board import Board
from psgd.training.survival.course import Course
from psgd.training.survival.duties import Duties
from psgd.training.survival.ledger import Ledger
from psgd.training.survival.stragglers import Stragglers

Found = TypeVar("Found")
_AT_THE_LAST = "the run does not survive the next one", "after the next one the run begins again at a checkpoint"


class Survival:
    """Implements `psgd.server.surviving.hand_over.HandOver`, on all ranks.

    Args:
        config: of the run.
        mesh: of the run.
        samples: of an epoch.
        metrics: the run's; says when.
        duties: who leads tells of deaths.
        course: a worker's batches; None on a server.
        params: this rank's vector.

    Attributes:
        gone, gone_servers: workers and servers that have died, as far as this rank counts them.
        all_count: without servers, every worker has the run's counters, and can lead to the very end.
        failures: of the mesh's world.
        on_lost: called where this rank tells of a death, with the dead's rank; for a trace.
        on_regroup: called on workers without servers, when those that live are together again.
        on_end: called where this rank leads, when all that live have met behind the run.
        watch: who looks for whom the others wait; None where ranks of a node cannot read each other's memory.
    """

    def __init__(
        self,
        config: TrainConfig,
        mesh: Mesh,
        samples: int,
        metrics: RunMetrics,
        duties: Duties,
        course: Course | None,
        params: Any = None,
    ) -> None:
        self.gone: list[int] = []
        self.gone_servers: list[int] = []
        self.also_lost = ""
        self.on_lost: Callable[[int], object] = _untold
        self.on_regroup: Callable[[], object] = _untold
        self.on_end: Callable[[], object] = _untold
        self.all_count = False
        self.failures = MpiDeaths(mesh.world)
        self.watch: Stragglers | None = None
        self._board: Board | None = None
        self._params = params
        self._mesh, self._metrics, self._duties, self._course = mesh, metrics, duties, course
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
        """The run resumes: so many samples each worker had drawn before, and counts from here.

        More than there are, where it was to take more epochs then, are all of them.
        """
        most = [each.drawn(each.steps * self._config.epochs) for each in self.shares()]
        self._ledger.begin([min(each) for each in zip(drawn, most, strict=True)])

    @property
    def lost_ranks(self) -> list[int]:
        """Ranks that have died, as the job was started with them."""
        return [*map(self._number, self._ranks(self.gone)), *map(self._number, self._in_job(self.gone_servers))]

    def begin(self, job: MPI.Intracomm) -> None:
        """Deaths are counted; from `started` on workers may die. `job` is all ranks."""
        self._job = job

    def started(self) -> None:
        mesh = self._mesh
        servers = map(mesh.server_rank, range(mesh.servers if mesh.replicas else 0))
        TOLERANCE.allow(self._ranks(range(mesh.workers)) + self._in_job(servers))

    def look_after(self, job: MPI.Intracomm, drop_s: float | None) -> None:
        """From now on ranks for which others wait are reported, and dropped after `drop_s`. Collective, blocks."""
        board = Board(job)
        if not board.works:
            if drop_s is not None and board.rank == 0:
                say("warning: --drop-straggler-after: ranks of a node cannot share memory here: nobody is dropped")
            return
        servers = {self._mesh.server_rank(server): server for server in range(self._mesh.servers)}
        kinds = {rank: f"server {server}" for rank, server in servers.items()}
        kinds |= {self._mesh.worker_rank(worker): f"worker {worker}" for worker in range(self._mesh.workers)}
        world = sorted(kinds)
        ranks = self._mesh.world.Get_group().Translate_ranks(world, job.Get_group())
        names = {rank: f"{kinds[place]} (rank {rank})" for place, rank in zip(world, ranks, strict=True)}
        course = self._course
        self._board = board
        self.watch = Stragglers(
            board,
            job,
            drop_s,
            names.__getitem__,
            busy=lambda: course is not None and course.evaluates,
            servers=[rank for place, rank in zip(world, ranks, strict=True) if place in servers],
        )
        self.watch.start()

    def waiting(self, act: Callable[..., Any], **when: Callable[[], object]) -> Callable[..., Any]:
        """A call in which this rank waits for others; `when` is as `Stragglers.around` has it."""
        return act if self.watch is None else self.watch.around(act, **when)

    def end(self, job: MPI.Intracomm, act: Callable[[MPI.Intracomm], Found]) -> Found:
        """What all do together behind the last step. Collective over those of `job` that live, blocks.

        From now on only who has the run's counters must live: a worker without servers, with replicas a server, else
        server 0.

        Args:
            job: all ranks.
            act: is given those that live, of which the one that leads is rank 0; again where one dies meanwhile.

        Returns:
            What it returned.
        """
        if self.watch is not None:
            self.watch.end()
        servers = range(0 if self._mesh.replicas else 1, self._mesh.servers)
        TOLERANCE.allow(self._ranks(range(self._mesh.workers)) + self._in_job(servers))
        found = Survivors(job, self._arrange).together(act)
        if self._duties.leads:
            self.on_end()
        return found

    def _arrange(self, living: MPI.Intracomm) -> MPI.Intracomm:
        """Those that live, who leads in front; tells of those whose death nobody has told. Collective, blocks."""
        mesh, group = self._mesh, living.Get_group()
        alive = set(group.Translate_ranks(None, mesh.world.Get_group()))
        servers = [server for server in range(mesh.servers) if mesh.server_rank(server) in alive]
        workers = [worker for worker in range(mesh.workers) if mesh.worker_rank(worker) in alive]
        if not workers:
            self.not_survived()
            raise PeerLostError("all workers have died before the final evaluation was made")
        if mesh.servers and servers[:1] != [0] and not (mesh.replicas and servers):
            raise PeerLostError("server 0 has died before the final evaluation was made")
        if not mesh.servers:
            led = min(set(range(mesh.workers)).difference(self.gone))
            if led not in workers and not self.all_count:
                raise PeerLostError(f"worker {led}, which had the run's counters, died behind the last step")
            self.lead(workers[0])
        elif mesh.replicas and mesh.role == "server" and mesh.index == servers[0]:
            self._take_over()
        for worker in sorted(set(range(mesh.workers)).difference(workers, self.gone)):
            self.gone.append(worker)
            self._tell_late(mesh.worker_rank(worker), f"worker {worker}", worker=worker)
        for server in sorted(set(range(mesh.servers)).difference(servers, self.gone_servers)):
            self.gone_servers.append(server)
            self._tell_late(mesh.server_rank(server), f"server {server}", server=server)
        living = self._duties.first(living)
        if mesh.replicas and living.Get_size() < self._job.Get_size():
            self._complete(living)
        return living

    def _tell_late(self, rank: int, name: str, **which: int) -> None:
        """Of a death behind the last step, of a rank of the mesh's world."""
        if not self._duties.leads:
            return
        rank, seconds = self._in_job([rank])[0], self._metrics.elapsed_s()
        number, cause = self._number(rank), self._cause(rank)
        left = self._mesh.workers - len(self.gone)
        self.on_lost(number)
        self._duties.log.write("lost", time=seconds, rank=number, cause=cause, samples=0, workers_left=left, **which)
        say(
            f"warning: {name} (rank {number}) is lost after {seconds:.2f} s, {cause}: all was trained, and {left} "
            "worker(s) make the final evaluation"
        )

    def _complete(self, living: MPI.Intracomm) -> None:
        """Gives servers the final parameters of a worker: one may have died before all servers had its part."""
        living.Bcast([self._params, MPI.BYTE], root=self._first_worker(living))

    def _first_worker(self, living: MPI.Intracomm) -> int:
        """The rank in `living` of the first worker that lives."""
        places = living.Get_group().Translate_ranks(None, self._mesh.world.Get_group())
        return min((place, rank) for rank, place in enumerate(places) if place >= self._mesh.servers)[1]

    def among_living(self, act: Callable[[MPI.Intracomm, int], object]) -> None:
        """Calls `act` on all ranks that live, and again where one dies meanwhile. Collective over them, blocks.

        Args:
            act: is given these, the one that leads first, and the first worker's rank among them. It may communicate
                over them, and must be able to begin again.
        """
        Survivors(self._job, self._arrange).together(lambda living: act(living, self._first_worker(living)))

    def lost(
        self, worker: int, applied: Sequence[int], waiting: Mapping[int, int], takers: Sequence[int]
    ) -> tuple[int, dict[int, NDArray[np.int64]]]:
        samples, messages = self._ledger.lose(worker, applied, waiting, takers)
        self.tell(worker, samples)
        return samples, messages

    def _cause(self, rank: int) -> str:
        """Of a death."""
        waited_s = self._board.dropped_ns(rank) / 1e9 if self._board is not None else 0.0
        return f"dropped as others had waited for it for {waited_s:.1f} s" if waited_s else "its process ended"

    def tell(self, worker: int, samples: int) -> None:
        """Counts a death, writes it to the log and says it, where this rank leads."""
        self.gone.append(worker)
        seconds, left = self._metrics.elapsed_s(), self._mesh.workers - len(self.gone)
        self._metrics.tell_next()
        rank = self._ranks([worker])[0]
        if not self._duties.leads:
            return
        log, cause = self._duties.log, self._cause(rank)
        rank = self._number(rank)
        self.on_lost(rank)
        log.write("lost", time=seconds, worker=worker, rank=rank, cause=cause, samples=samples, workers_left=left)
        say(
            f"warning: worker {worker} (rank {rank}) is lost after {seconds:.2f} s, {cause}: the {samples:,} "
            f"samples that it had left go to {counted(left, 'other worker')}{self.also_lost}"
        )

    def lost_server(self, server: int) -> None:
        self.gone_servers.append(server)
        if self._course is not None:
            self._course.shrunk = True
            return
        first = min(set(range(self._mesh.servers)) - set(self.gone_servers))
        if self._mesh.index == first:
            self._take_over()
        if not self._duties.leads:
            return
        rank, seconds = self._in_job([server])[0], self._metrics.elapsed_s()
        self._metrics.tell_next()
        cause = self._cause(rank)
        rank = self._number(rank)
        self.on_lost(rank)
        left, workers = self._mesh.servers - len(self.gone_servers), self._mesh.workers - len(self.gone)
        of_server = {"server": server, "rank": rank, "servers_left": left, "workers_left": workers}
        self._duties.log.write("lost", time=seconds, cause=cause, **of_server)
        say(
            f"warning: server {server} (rank {rank}) is lost after {seconds:.2f} s, {cause}: "
            f"{counted(left, 'other server')} {'has' if left == 1 else 'have'} all that it had"
            + ("" if left > 1 else f"; {_AT_THE_LAST[TOLERANCE.look is not None]}")
        )

    def not_survived(self) -> None:
        if TOLERANCE.look is not None:  # which begins the run again at deaths that are not allowed
            TOLERANCE.allow(())

    def lead(self, worker: int) -> None:
        if self._mesh.role == "worker" and worker == self._mesh.index:
            self._take_over()
        self.on_regroup()

    def _take_over(self) -> None:
        if not self._duties.leads:
            self._duties.take_over()
            say(f"warning: rank {self._number(self._job.Get_rank())} goes on with the log, the progress and the result")

    def _ranks(self, workers: Iterable[int]) -> list[int]:
        """Their ranks in the job."""
        return self._in_job(map(self._mesh.worker_rank, workers))

    def _number(self, rank: int) -> int:
        """The number of a rank of the job in the one that was started: it is another where a run was begun again."""
        return self._job.Get_group().Translate_ranks([rank], MPI.COMM_WORLD.Get_group())[0]

    def _in_job(self, ranks: Iterable[int]) -> list[int]:
        return list(self._mesh.world.Get_group().Translate_ranks(list(ranks), self._job.Get_group()))

    def pushed(self, worker: int, drawn: int) -> None:
        self._ledger.pushed(worker, drawn)

    def compute_again(self, before: int) -> None:
        assert self._course is not None
        self._course.again(before)

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
        self._course.ends = self.waiting(ask)

    @property
    def rest(self) -> Callable[[], bool]:
        """What applies gradients that are left at the end."""
        assert self._course is not None
        return self._course.rest

    @rest.setter
    def rest(self, ask: Callable[[], bool]) -> None:
        assert self._course is not None
        self._course.rest = self.waiting(ask)


def _untold(*_: object) -> None:
    pass


def prepare(
    connection: Connection,
    job: MPI.Intracomm,
    config: TrainConfig,
    duties: Duties,
    course: Callable[[int, int], Course] | None,
) -> None:
    """From now on, workers may die, where MPI and the run go on without them. Collective over `job`, blocks.

    Args:
        connection: before its block.
        job: all ranks.
        config: of the run.
        duties: of this rank.
        course: a worker's batches, from how many workers there are and which it is; None on a server.

    Raises:
        AgreedUsageError: workers are to be dropped, and the run does not go on without them.
    """
    mesh, metrics = connection.mesh, connection.metrics
    asked = config.flat(), mesh.servers, mesh.workers
    if switch.enabled() and going_on.survives(*asked):
        mine = None if course is None else course(mesh.workers, mesh.index)
        mesh.replicas = config.replicas
        samples, params = metrics.samples_per_epoch, connection.params
        mesh.survival = survival = Survival(config, mesh, samples, metrics, duties, mine, params)
        survival.look_after(job, config.drop_straggler_after)
        duties.also.append(connection.lead)
        survival.on_end = connection.tidy
        connection.step = survival.waiting(connection.step, still=lambda: connection.stop)  # type: ignore[method-assign]
        survival.begin(job)
        found = connection.resumed_from
        if found is not None and mesh.role == "server" and not found.manifest.has_workers(mesh.workers):
            # All begin at the same step, and are counted from there; else each is, from where it was.
            survival.resume([each.drawn(each.steps_behind(found.manifest.samples)) for each in survival.shares()])
    elif config.replicas:
        raise AgreedUsageError(going_on.without("--replicas 1", *asked))
    elif config.drop_straggler_after is not None:
        raise AgreedUsageError(going_on.without(f"--drop-straggler-after {config.drop_straggler_after:g}", *asked))
