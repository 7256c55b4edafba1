"""One rank's checkpoints of a run: when they are due, what goes into them, and what a resumed run takes out."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from psgd.checkpoint import extra, folder, vectors
from psgd.checkpoint.requests import CheckpointRequest
from psgd.checkpoint.resume import Plan, States
from psgd.checkpoint.state import State, Stead
from psgd.checkpoint.writer import Writer
from psgd.kernels.errors import CheckpointError, UsageError
from psgd.kernels.notice import counted, say
from psgd.metrics.run_metrics import RunMetrics
from psgd.metrics.trace.span import Span, Traceable
from psgd.runtime.agreement import agree
from psgd.runtime.device_vectors import on_host
from psgd.runtime.jsonable import JSON, section, whole, wholes
from psgd.runtime.mesh import Mesh

Taken = TypeVar("Taken")
_NOBODYS = Stead()


def _nobody_listens(step: int) -> None:
    pass


class Saver:
    """One rank's checkpoints.

    Args:
        plan: prepared.
        mesh: who is who.
        metrics: counters of the run, on rank 0.
        request: what this process wants.
        accumulate: steps of a worker that make one push.

    Attributes:
        request: as given.
        clock: this rank's steps as a worker.
        extra: what the program wants to have saved with it: numbers, texts, arrays.
        others: where this worker has no state of its own to resume from: what psgd itself has saved with all workers'.
        found: the checkpoint that this run resumes from, or None.
        on_save: called with the step once this rank's state is copied.
    """

    def __init__(
        self,
        plan: Plan,
        mesh: Mesh,
        metrics: RunMetrics,
        request: CheckpointRequest | None = None,
        accumulate: int = 1,
    ) -> None:
        self.request = request or CheckpointRequest(plan.minutes)
        self.clock = 0
        self.extra: dict[str, Any] = {}
        self.others: dict[str, Any] = {}
        self.found = plan.found
        self.on_save: Callable[[int], None] = _nobody_listens
        self._plan, self._mesh, self._metrics, self._accumulate = plan, mesh, metrics, accumulate
        self._name = f"{mesh.role}-{mesh.index}"  # among the ranks of this piece, where the model is in pieces
        self._leads = mesh.world.Get_rank() == 0
        self._part = plan.part
        self._first = plan.part is None or plan.part.first
        self._newest = -1 if plan.found is None else plan.found.manifest.step
        self._counted: dict[str, JSON] = {}  # rank 0's counters at the checkpoint that the run resumes from
        self._writers: Mapping[str, int] = {}  # of parts that others save than those whose they are: their ranks
        self._writer: Writer | None = None
        if plan.directory is not None:
            own = self._name if plan.part is None else plan.part.name + self._name
            names = self._names() if self._leads and self._first else None
            self._writer = Writer(plan.directory, plan.key, own, names, keep=plan.keep, dead=self._dead)

    @property
    def _gone(self) -> list[int]:
        """Workers that have died, as all ranks count them."""
        return [] if self._mesh.survival is None else list(self._mesh.survival.gone)

    def _dead(self) -> list[str]:
        """The parts of the newest checkpoint whose writers are known to have died. Does not block."""
        mesh = self._mesh
        if mesh.survival is None:
            return []
        writers = {f"server-{index}": mesh.server_rank(index) for index in range(mesh.servers)}
        writers |= {f"worker-{index}": mesh.worker_rank(index) for index in range(mesh.workers)}
        writers |= self._writers
        failed = mesh.survival.failures.failed()
        return [name for name, rank in writers.items() if rank in failed]

    def lead(self) -> None:
        """Another rank that led has died, and this one goes on in its place. Does not communicate.

        Raises:
            CheckpointError: another run has taken the folder meanwhile.
        """
        plan = self._plan
        if plan.directory is None or self._writer is None or plan.claim is not None:
            return
        try:
            plan.claim = folder.hold(plan.directory)
        except UsageError as error:
            raise CheckpointError(str(error)) from None
        newest = folder.newest(plan.directory)
        self._writer.published = None if newest is None else newest.path

    def _names(self, workers: Sequence[int] | None = None) -> list[str]:
        some = range(self._mesh.workers) if workers is None else workers
        chosen = [worker for worker in some if worker not in self._gone]
        names = [f"server-{index}" for index in range(self._mesh.servers)] + [f"worker-{index}" for index in chosen]
        return [piece + name for piece in ([""] if self._part is None else self._part.pieces) for name in names]

    @property
    def _name_of_first(self) -> str:
        return "server-0" if self._mesh.servers else "worker-0"

    @property
    def active(self) -> bool:
        """Whether this run makes checkpoints."""
        return self._writer is not None

    @property
    def every(self) -> int:
        """Versions from one checkpoint to the next; 0 is only when asked."""
        return self._plan.every if self._writer is not None else 0

    @property
    def path(self) -> Path | None:
        """On rank 0 the newest complete checkpoint that this run has made, or resumes from."""
        made = None if self._writer is None else self._writer.published
        return made or (None if self.found is None else self.found.path)

    def save(self, step: int, leaving: bool, state_of: Callable[[], State], stead: Stead = _NOBODYS) -> None:
        """This rank stands at the checkpoint `step`. Returns when its state is copied.

        Args:
            step: of the checkpoint, the same on all ranks.
            leaving: all stop after it.
            state_of: gives this rank's state.
            stead: what is saved in the place of servers that have died.

        Raises:
            CheckpointError: the one before could not be written.
        """
        self.request.answered(leaving)
        if self._writer is None or step == self._newest:
            return
        self._newest = step
        if (gone := self._gone) and not self._mesh.servers:
            self._leads = self._mesh.index == min(set(range(self._mesh.workers)) - set(gone))
        self._leads = self._leads or self._name_of_first in stead.states
        state = state_of()
        tensors, facts = extra.split(self.extra)
        for each in (state, *stead.states.values()):
            each.tensors = {name: on_host(tensor) for name, tensor in each.tensors.items()}
            each.facts["loop"] = {"clock": self.clock, **facts}
        state.tensors.update(tensors)
        first = stead.states.get(self._name_of_first, state)
        if self._leads:
            first.facts["metrics"] = self._metrics.facts()
        if stead.writers != self._writers:
            self._writer.wait()  # what is being written looks at the old ones
            self._writers = stead.writers
        if not (self._leads and self._first):
            self._writer.save(step, state, more=stead.states)
            self.on_save(step)
            return
        facts = first.facts
        manifest = self._plan.manifest(
            step,
            facts["samples"],
            facts["version"],
            facts["metrics"]["accuracy"] if math.isfinite(facts["metrics"]["accuracy"] or 0.0) else None,
            facts.get("algorithms", {}),
        )
        if gone:
            run = manifest.run | {"workers": self._mesh.workers - len(gone), "lost": gone}
            manifest = replace(manifest, run=run)
        self._writer.save(step, state, manifest, self._names(facts.get("savers")), stead.states)
        self.on_save(step)

    def restored(self, take: Callable[[], Taken]) -> Taken:
        """Calls what restores this rank's part. Collective, blocks: what one rank cannot restore ends all alike.

        Raises:
            AgreedUsageError: on all ranks.
        """
        assert self.found is not None
        complaint = None
        try:
            if self._leads or self._mesh.survival is not None:  # or may have to lead later
                self._counted = section(States(self.found)[0].facts, "metrics")
                self._metrics.restore(self._counted)  # now, so that an error is one of all ranks
            taken = take()
        except Exception as error:  # whatever it is, all ranks must raise it
            text = str(error)
            if not isinstance(error, (UsageError, OSError)):
                text = f"cannot be restored, was it saved by another version? {type(error).__name__}: {error}"
            complaint = text if str(self.found.path) in text else f"{self.found.path}: {text}"
        agree(self._mesh.world if self._part is None else self._part.world, "", {}, complaint)
        return taken

    def _was(self, role: str) -> int:
        """How many servers or workers there were."""
        assert self.found is not None
        return whole(self.found.manifest.run, role)

    def states(self) -> tuple[State | None, States]:
        """This worker's own state, None where the workers are others or it has none, and all.

        The own state of a worker with servers is nothing for one without, and the reverse; what the program has saved
        with it comes back all the same.
        """
        assert self.found is not None
        states = States(self.found)
        if not self.found.manifest.has_workers(self._mesh.workers):
            if self._mesh.index == 0 and not self.request.again:
                lost = len(self.found.manifest.run.get("lost", ()))  # type: ignore[arg-type]
                say(
                    f"warning: resume: the checkpoint has {counted(self._was('workers'), 'worker')}"
                    + (f" after {lost} had died" if lost else "")
                    + f", this run has {self._mesh.workers}"
                )
                if any(extra.is_in(self.found.state(name)) for name in self.found.manifest.names("worker")[:1]):
                    say("warning: resume: what each worker had in ps.extra is not restored")
            self.others = self._saved_by_workers()
            return None, states
        if self._name not in states.names:
            # It was done and saved nothing. The servers know its pushes; the last may be of fewer steps, so that this
            # is no less than its steps.
            clocks = wholes(section(states[0].facts, "log"), "clocks", self._mesh.workers)
            self.clock = self._accumulate * clocks[self._mesh.index]
            self.others = self._saved_by_workers()
            return None, states
        own = self.found.state(self._name)
        loop = section(own.facts, "loop")
        self.clock, self.extra = whole(loop, "clock"), extra.joined(loop, own)
        served = self._was("servers") > 0
        return own if served == (self._mesh.servers > 0) else None, states

    def _saved_by_workers(self) -> dict[str, Any]:
        found = self.found
        assert found is not None
        return dict(extra.own_of(found.state(name) for name in found.manifest.names("worker")))

    def parts(
        self, wanted: Mapping[int, range]
    ) -> tuple[dict[int, Mapping[str, Any]], Mapping[str, JSON], State | None]:
        """Some servers' ranges of what all servers had, by their indices.

        Returns:
            These, server 0's facts, and this server's own state where servers are the same.
        """
        assert self.found is not None
        states = States(self.found)
        first = states[0]
        if self._was("servers") == self._mesh.servers:
            found = {index: self.found.state(f"server-{index}") if index else first for index in wanted}
            return {index: state.tensors for index, state in found.items()}, first.facts, found[self._mesh.index]
        whole_vectors = vectors.assemble(state for state in states if vectors.is_sharded(state))
        cut: dict[int, Mapping[str, Any]] = {
            index: {name: vector[part.start : part.stop] for name, vector in whole_vectors.items()}
            for index, part in wanted.items()
        }
        return cut, first.facts, None

    def pulled(self, part: range) -> dict[int, Any]:
        """By worker, a server's range of what compressed answers have brought it to; of those that have saved it."""
        assert self.found is not None
        found: dict[int, Any] = {}
        found_all = self.found.manifest.has_workers(self._mesh.workers)
        for name in self.found.manifest.names("worker") if found_all else ():
            state = self.found.state(name)
            if "pulled" in state.tensors:
                found[int(name.partition("-")[2])] = state.tensors["pulled"][part.start : part.stop]
        return found

    def recount(self) -> None:
        """Rank 0's counters, and its clock, continue from where they were."""
        if self._counted:
            self._metrics.restore(self._counted)

    def spans(self) -> list[Traceable]:
        """What a trace times: copying a state, and writing it in the background."""
        if self._writer is None:
            return []
        return [Span(self, "save", "save"), Span(self._writer, "_work", "write", track=1)]

    def check(self) -> None:
        """Raises CheckpointError where one could not be written. Blocks for nothing."""
        if self._writer is not None:
            complete = self.request.owed and not self._writer.busy
            self._writer.check()
            if complete:
                self.request.announce(self.path)

    def wanted(self) -> int:
        """What this process wants; see `CheckpointRequest.wanted`, and `check`."""
        self.check()
        return self.request.wanted() if self._part is None else 0  # of a model in pieces the workers ask, all at once

    def unsent(self) -> int:
        """What a worker passes on in its next step. Of a model in pieces, all ranks of this copy ask alike: collective.

        Raises:
            UsageError: something was requested, and there are no checkpoints for which the pieces could meet.
        """
        if self._part is not None and self._part.apart:
            return 0
        wanted = self.request.unsent()
        if self._part is None:
            return wanted
        if self._writer is None:
            raise UsageError("save: a model in pieces is saved, and stopped, at checkpoints: expected checkpoint_dir")
        return self._part.largest(wanted)

    def tidy(self) -> None:
        """Removes checkpoints of this run that never became complete. On one rank, once all that live have closed."""
        if self._writer is not None:
            self._writer.tidy()

    def close(self, failed: bool) -> None:
        """Returns when the newest is on the disk; with `failed` at once.

        Raises:
            CheckpointError: it could not be written.
        """
        try:
            if self._writer is not None and failed:
                self._writer.abandon()
            elif self._writer is not None:
                self._writer.wait()
                self.check()
        finally:
            self._plan.release()
