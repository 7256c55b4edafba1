"""A run in one attempt after the other: the next one begins at the newest checkpoint, in the same processes.

All ranks of the job iterate together; a rank that stands by gets the attempts in which it acts. Where a rank dies
without which the run cannot go on by itself, each rank's thread that watches for deaths ends all calls of the attempt;
whatever error that rank leaves it with, they meet, and others take the places of the dead.
"""

import gc
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

from mpi4py import MPI

from psgd.checkpoint import folder
from psgd.collectives.mpi.patience import Patience
from psgd.collectives.mpi.watchdog import BACKGROUND
from psgd.config import TrainConfig
from psgd.kernels.errors import AgreedError, PeerLostError
from psgd.kernels.notice import counted, listed, say
from psgd.metrics.event_log import EventLog
from psgd.runtime.agreement import broadcast, gather
from psgd.runtime.job_end import secondary
from psgd.runtime.ulfm import switch
from psgd.runtime.ulfm.deaths import means_death
from psgd.runtime.ulfm.survivors import Survivors
from psgd.runtime.ulfm.tolerance import TOLERANCE
from psgd.training.restart import fitting
from psgd.training.restart.crew import Crew
from psgd.training.restart.family import Family

_NOTICE_S = 5.0  # until MPI knows of the death that made a call fail
_COME_S = 120.0  # from a call to meet until a rank comes: it may be in the middle of a long step


class _AgainError(Exception):
    """The attempt has not ended well on some rank that lives."""


class Attempt:
    """One rank's part in one attempt: a context manager, which swallows what means that there will be another.

    Attributes:
        config: of this attempt.
        comm: those that act in it.
        again: there was one before.
        fine: it ended well.
        leads: this rank has its result.
        left: it ended for one with more workers, which begins at its last checkpoint.
        ended: the part of a run that grows is over with it.
        met: whether it has ended well for all, once all that live have met; None before.
    """

    def __init__(self, config: TrainConfig, comm: MPI.Intracomm, crew: Crew | None, again: bool = False) -> None:
        self.config, self.again = config, again
        self.fine = self.leads = self.left = self.ended = False
        self.met: bool | None = None
        self._crew, self._family = crew, Family()
        self.comm = comm if crew is None else self._family.adopt(comm)
        self._called = threading.Event()
        self._since = 0.0

    def __enter__(self) -> "Attempt":
        if self._crew is not None:
            BACKGROUND.add(self._family)
            TOLERANCE.allow(())
            TOLERANCE.survivors = TOLERANCE.gathers = None
            TOLERANCE.look = self._look
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            self.fine = True
            if self._crew is not None and self.met is None:
                self._crew.wake()
            return False
        if isinstance(error, _AgainError):
            return True
        if self._crew is None or not isinstance(error, Exception):
            return False
        if not self._means_death(error):
            if isinstance(error, AgreedError):
                self._crew.wake(refused=True)
            return False
        BACKGROUND.discard(self._family)
        return True

    def leaves(self, result: Mapping[str, Any] | None, asked: bool) -> bool:
        """Whether what `run` returned is not the end of the run, since more workers are to join.

        All meet here, before anything is said of the result: a death later on costs no other attempt. Collective over
        those that live, blocks.

        Args:
            result: of `run` on this rank.
            asked: a user has asked this rank to save and stop.
        """
        self.leads = result is not None
        if self._crew is None:
            return False
        mine = {
            "left": result is not None and fitting.left(self.config, result),
            "ended": result is not None and fitting.has_ended(self.config, result),
            "asked": asked,
        }
        everyone = TOLERANCE.together(self.comm, lambda comm: gather(comm, mine))
        self.left = any(each["left"] for each in everyone) and not any(each["asked"] for each in everyone)
        self.ended = any(each["ended"] for each in everyone)
        self._crew.wake()
        self.met = self._crew.meet(True)
        BACKGROUND.discard(self._family)
        TOLERANCE.look = _ends
        if not self.met:
            raise _AgainError
        return self.left

    def _means_death(self, error: Exception) -> bool:
        """Whether this rank leaves with an error because another is dead. Blocks until that is known."""
        patience = Patience(_NOTICE_S)
        while not self._called.is_set():
            if (secondary(error) is None and not _of_a_call(error)) or patience.over():
                return False
            time.sleep(0.01)
        return True

    def _look(self) -> bool:
        """In the thread that watches: has this rank leave at a death. Whether the job must end instead."""
        if MPI.COMM_WORLD.Is_revoked():  # by a rank that ends the job
            return True
        if self._called.is_set():
            return time.monotonic() - self._since > _COME_S
        assert self._crew is not None
        try:
            rung, dead = self._crew.rung, self.comm.Get_failed()
            if rung or TOLERANCE.ends_at(dead.Translate_ranks(None, self.comm.Get_group()) if dead.Get_size() else ()):
                self._since = time.monotonic()
                self._family.end()
                self._crew.ring()
                self._called.set()
        except MPI.Exception:  # between two attempts
            pass
        return False


def attempts(config: TrainConfig, job: MPI.Intracomm) -> Iterator[Attempt]:
    """This rank's attempts; it must enter and leave each before it asks for the next. Collective over `job`, blocks.

    Args:
        config: of the run, with its servers and workers.
        job: all ranks: those of the run, then those that stand by.

    Raises:
        PeerLostError: a rank is dead, and the run cannot be begun again with those that are left.
    """
    if not (switch.enabled() and fitting.can_restart(config) and job.Get_size() > 1):
        yield Attempt(config, job, None)
        return
    began, crew, moved, again = time.monotonic(), Crew(job, fitting.acting(config)), False, False
    first = crew.place
    while True:
        comm = crew.team()
        moved = moved or crew.place != first
        attempt = Attempt(_without_own_deaths(config, moved), comm or MPI.Intracomm(), crew, again)
        again = True
        if comm is None:
            pass
        elif crew.place is None:
            TOLERANCE.look = _ends
            if crew.stand_by():
                raise AgreedError("the others have refused the run")
            attempt.fine = not crew.rung
        else:
            yield attempt
        fine = crew.meet(attempt.fine) if attempt.met is None else attempt.met
        TOLERANCE.look = _ends
        lost, places = len(crew.lost), crew.numbers[: crew.acting]
        crew.regroup(None if fine else partial(fitting.acts, config), attempt.leads)
        Survivors(crew.job, complete=True)
        said = broadcast(crew.job, {"left": attempt.left, "ended": attempt.ended}) if fine else {}
        if fine and not said["left"]:
            return
        if fine:
            config = fitting.after_leaving(config, said["ended"], crew.job.Get_size())
            crew.act(fitting.acting(config))
            TOLERANCE.lost = list(crew.lost)
            if crew.job.Get_rank() == 0:
                _tell_growth(config, crew, places, time.monotonic() - began)
            continue
        found = fitting.fitted(config, crew.job.Get_size())
        if found is None:
            assert config.checkpoint_dir is not None
            raise PeerLostError(
                f"{listed(crew.lost[lost:])} died, and too few are left to begin again; "
                f"{folder.how_to_resume(config.checkpoint_dir)}"
            )
        config = replace(found, resume=True, spares=crew.job.Get_size() - fitting.acting(found))
        TOLERANCE.lost = list(crew.lost)
        if crew.job.Get_rank() == 0:
            _tell(config, crew, lost, places, time.monotonic() - began)
        gc.collect()  # what the attempt has left: threads, vectors, the hold on the folder of checkpoints


def _of_a_call(error: BaseException | None) -> bool:
    """Whether MPI's word for it is one that stands for a death too, as that of several calls that were tested."""
    while error is not None and not means_death(error):
        error = error.__cause__ or error.__context__
    return error is not None


def _without_own_deaths(config: TrainConfig, moved: bool) -> TrainConfig:
    """A rank that has come to another's place is not the one that was to die."""
    return replace(config, inject=fitting.without_deaths(config.inject)) if moved else config


def _ends() -> bool:
    """As `Attempt._look` where this rank has no part in one."""
    return bool(MPI.COMM_WORLD.Is_revoked())


def _tell(config: TrainConfig, crew: Crew, before: int, places: list[int], seconds: float) -> None:
    """Rank 0 says, and writes to the log, who was lost and from where the run begins again."""
    assert config.checkpoint_dir is not None
    newest = folder.newest(config.checkpoint_dir)
    step = 0 if newest is None else newest.manifest.step
    lost, now = crew.lost[before:], crew.numbers[: crew.acting]
    came = [number for number in now if number not in places]
    spares = crew.job.Get_size() - crew.acting
    log = EventLog(config.log, append=True)
    for number in lost:
        log.write("lost", time=seconds, rank=number, cause="its process ended")
    log.write("restart", time=seconds, step=step, ranks=now, joined=came, workers=config.workers, spares_left=spares)
    log.close()
    instead = f"{listed(came)} in {'its' if len(lost) == 1 else 'their'} place" if came else ""
    instead = instead or counted(config.workers or 0, "worker")
    say(
        f"warning: {listed(lost)} lost {seconds:.2f} s after the start of the job: the run begins again at "
        f"step {step:,} with {instead}; {counted(spares, 'spare')} left"
    )


def _tell_growth(config: TrainConfig, crew: Crew, places: list[int], seconds: float) -> None:
    """Rank 0 says, and writes to the log, with how many workers the run goes on."""
    now = crew.numbers[: crew.acting]
    log = EventLog(config.log, append=True)
    joined = [number for number in now if number not in places]
    log.write("grow", time=seconds, ranks=now, joined=joined, workers=config.workers)
    log.close()
    say(f"the run goes on with {counted(config.workers or 0, 'worker')}: {listed(joined)} joined")
