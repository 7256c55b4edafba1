"""One rank's checkpoints of a run: when they are due, what goes into them, and what a resumed run takes out."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from psgd.checkpoint import vectors
from psgd.checkpoint.manifest import Manifest
from psgd.checkpoint.requests import CheckpointRequest
from psgd.checkpoint.resume import Plan, States, say
from psgd.checkpoint.state import State
from psgd.checkpoint.writer import Writer
from psgd.kernels.errors import CheckpointError
from psgd.metrics.run_metrics import RunMetrics
from psgd.runtime.device_vectors import on_host
from psgd.runtime.jsonable import JSON
from psgd.runtime.mesh import Mesh


def split_extra(extra: Mapping[str, Any]) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, JSON]]:
    """What a program saves beside: the arrays, and the rest as JSON can say it.

    Raises:
        CheckpointError: naming what cannot be saved.
    """
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    others: dict[str, JSON] = {}
    for name, value in extra.items():
        if not isinstance(name, str):
            raise CheckpointError(f"extra: expected names as texts, got {name!r}")
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            arrays[name] = value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))
            continue
        plain = value.item() if isinstance(value, np.generic) else value
        try:
            json.dumps(plain)
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"extra[{name!r}]: expected a number, a text, a list of them or an array of numbers, "
                f"got {type(value).__name__} ({error})"
            ) from None
        others[name] = plain
    return arrays, others


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
        found: the checkpoint that this run resumes from, or None.
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
        self.found = plan.found
        self._plan, self._mesh, self._metrics, self._accumulate = plan, mesh, metrics, accumulate
        self._name = f"{mesh.role}-{mesh.index}"
        self._leads = mesh.world.Get_rank() == 0
        self._newest = -1 if plan.found is None else plan.found.manifest.step
        self._writer: Writer | None = None
        if plan.directory is not None:
            self._writer = Writer(
                plan.directory, plan.key, self._name, self._names() if self._leads else None, keep=plan.keep
            )

    def _names(self, workers: Sequence[int] | None = None) -> list[str]:
        chosen = range(self._mesh.workers) if workers is None else workers
        return [f"server-{index}" for index in range(self._mesh.servers)] + [f"worker-{index}" for index in chosen]

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

    def save(self, step: int, leaving: bool, state_of: Callable[[], State]) -> None:
        """This rank stands at the checkpoint `step`. Returns when its state is copied.

        Raises:
            CheckpointError: the one before could not be written.
        """
        self.request.answered(leaving)
        if self._writer is None or step == self._newest:
            return
        self._newest = step
        state = state_of()
        state.tensors = {name: on_host(tensor) for name, tensor in state.tensors.items()}
        arrays, others = split_extra(self.extra)
        state.facts["loop"] = {"clock": self.clock, "extra": others}
        state.tensors.update({f"extra.{name}": array for name, array in arrays.items()})
        if not self._leads:
            self._writer.save(step, state)
            return
        state.facts["metrics"] = self._metrics.facts()
        facts = state.facts
        manifest = Manifest(
            step,
            facts["samples"],
            facts["version"],
            self._metrics.accuracy,
            self._plan.run,
            facts.get("algorithms", {}),
            layout=self._plan.layout,
        )
        self._writer.save(step, state, manifest, self._names(facts.get("savers")))

    def states(self) -> tuple[State | None, States]:
        """This worker's own state, None where the workers are others or it has none, and all."""
        assert self.found is not None
        states = States(self.found)
        own = None
        if self.found.manifest.run["workers"] == self._mesh.workers and self._name in states.names:
            own = self.found.state(self._name)
            loop = own.facts["loop"]
            self.clock = loop["clock"]
            arrays = {key[6:]: array for key, array in own.tensors.items() if key.startswith("extra.")}
            self.extra = loop["extra"] | arrays
            own.tensors = {key: array for key, array in own.tensors.items() if not key.startswith("extra.")}
        elif self.found.manifest.run["workers"] == self._mesh.workers:
            # It was done and saved nothing. The servers know its pushes; the last may be of fewer steps, so that this
            # is no less than its steps.
            self.clock = self._accumulate * states[0].facts["log"]["clocks"][self._mesh.index]
        elif self._mesh.index == 0:
            say(f"warning: resume: {self.found.manifest.run['workers']} workers are now {self._mesh.workers}")
        return own, states

    def parts(self, part: range) -> tuple[Mapping[str, Any], Mapping[str, JSON], State | None]:
        """A server's range of what all servers had, server 0's facts, and its own state where servers are the same."""
        assert self.found is not None
        states = States(self.found)
        first = states[0]
        if self.found.manifest.run["servers"] == self._mesh.servers:
            own = first if self._leads else self.found.state(self._name)
            return own.tensors, first.facts, own
        shards = [state for state in states if vectors.is_sharded(state)]
        whole = vectors.assemble(shards)
        return {name: vector[part.start : part.stop] for name, vector in whole.items()}, first.facts, None

    def pulled(self, part: range) -> dict[int, Any]:
        """By worker, a server's range of what compressed answers have brought it to; of those that have saved it."""
        assert self.found is not None
        if self.found.manifest.run["workers"] != self._mesh.workers:
            return {}
        found = {}
        for name in self.found.manifest.names("worker"):
            state = self.found.state(name)
            if "pulled" in state.tensors:
                found[int(name.partition("-")[2])] = state.tensors["pulled"][part.start : part.stop]
        return found

    def recount(self) -> None:
        """Rank 0's counters continue from where they were."""
        if self._leads and self.found is not None:
            with self.found.explained():
                self._metrics.restore(States(self.found)[0].facts["metrics"])

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
        return self.request.wanted()

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
