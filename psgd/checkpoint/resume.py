"""What a run asked for of checkpoints, and the one it resumes from: found by rank 0, agreed by all."""

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

from mpi4py import MPI

from psgd.checkpoint import folder, manifest, options
from psgd.checkpoint.folder import Checkpoint
from psgd.checkpoint.manifest import Manifest
from psgd.checkpoint.pieces.model_part import ModelPart
from psgd.checkpoint.pieces.rearranged import Rearranged, for_run
from psgd.checkpoint.state import State
from psgd.collectives.mpi.patience import Patience
from psgd.kernels.errors import UsageError
from psgd.kernels.notice import say
from psgd.nn.layout import Layout
from psgd.runtime.agreement import agree, broadcast
from psgd.runtime.jsonable import JSON, unsaid

PATIENCE_S = 2.0
"""For what rank 0 has written to be seen on the other hosts."""


@dataclass
class Plan:
    """What was asked for; checked, and the same on all ranks after `prepare`.

    Attributes:
        directory: of the checkpoints; None makes none.
        every: versions from one to the next; 0 is only when asked.
        minutes: the same in time.
        keep: how many of the newest stay, and the best.
        resume: from the newest.
        layout: of the parameters, where it is known.
        part: what this rank has of a model in pieces, or None.
        shares: workers share vectors, each of which has ranges of them (`psgd.checkpoint.pieces.own_ranges`).
        run: what a resumed run must have in common, as JSON can say it.
        key: of this run.
        found: the checkpoint to resume from, or None.
        claim: rank 0's hold on the directory.
    """

    directory: Path | None = None
    every: int = 0
    minutes: float = 0.0
    keep: int = 3
    resume: bool = False
    layout: Layout | None = None
    part: ModelPart | None = None
    shares: bool = False
    run: dict[str, JSON] = field(default_factory=dict)
    key: str = ""
    found: Checkpoint | None = None
    claim: folder.Claim | None = None

    def check(self) -> None:
        """Raises UsageError where an option cannot be."""
        options.EVERY.check("checkpoint_every", self.every)
        options.MINUTES.check("checkpoint_minutes", self.minutes)
        options.KEEP.check("checkpoint_keep", self.keep)

    def must_agree(self, ours: Mapping[str, JSON], theirs: Mapping[str, JSON]) -> None:
        """Sets `run`: what psgd compares, and what the program does.

        Raises:
            UsageError: these share a name, or a value would not come back equal, so that no run could resume this one.
        """
        if complaint := unsaid(dict(theirs), "run"):
            raise UsageError(f"{complaint}; expected JSON values")
        if theirs != json.loads(json.dumps(theirs)):
            raise UsageError("run: expected values that are equal to themselves, got NaN")
        if taken := sorted(set(ours) & set(theirs)):
            raise UsageError(f"run: expected names that psgd does not use itself, got {', '.join(taken)}")
        self.run = {**ours, **theirs}

    def manifest(
        self, step: int, samples: int, version: int, accuracy: float | None, algorithms: dict[str, JSON] | None = None
    ) -> Manifest:
        """Of a checkpoint of this run, without shards."""
        pieces = {} if self.part is None else self.part.pieces
        layout = self.layout if self.part is None else self.part.whole
        return Manifest(step, samples, version, accuracy, self.run, algorithms or {}, layout=layout, pieces=pieces)

    def release(self) -> None:
        """Lets go of the directory."""
        if self.claim is not None:
            self.claim.close()


def prepare(comm: MPI.Intracomm, plan: Plan) -> None:
    """Takes the directory and finds what to resume from. Collective, blocks; only rank 0 looks for itself.

    Of a model in pieces, `comm` joins the ranks of all.

    Raises:
        AgreedUsageError: on all ranks: a directory that cannot be written, that another run has, or that not all see;
            checkpoints that are there though none is to be resumed; a run with other options.
    """
    if plan.directory is None:
        return
    try:
        _prepare(comm, plan, plan.directory)
    except BaseException:
        plan.release()
        raise


def _prepare(comm: MPI.Intracomm, plan: Plan, directory: Path) -> None:
    answer: dict[str, Any] = {}
    complaint = None
    if comm.Get_rank() == 0:
        try:
            answer = _find(plan, directory)
        except (UsageError, OSError) as error:
            complaint = str(error)
    agree(comm, "", {}, complaint)
    answer = broadcast(comm, answer)
    plan.key = answer["key"]
    proof = directory / f".{plan.key}"
    try:
        _await(proof, comm.Get_rank())
        if answer["path"] is not None:
            there = folder.open_checkpoint(Path(answer["path"]))
            plan.found = for_run(there, plan.part, plan.layout, plan.shares)
            if comm.Get_rank() == 0 and isinstance(plan.found, Rearranged):
                plan.found.tell(plan.part)
    except (UsageError, OSError) as error:
        complaint = str(error)
    try:
        agree(comm, "", {}, complaint)
    finally:
        if comm.Get_rank() == 0:
            proof.unlink(missing_ok=True)


def _find(plan: Plan, directory: Path) -> dict[str, Any]:
    manifest.encode(plan.manifest(0, 0, 0, None))  # what is too long to be read is refused now
    plan.claim = folder.claim(directory)
    found = None
    if plan.resume:
        there = folder.folders(directory)
        found = next(folder.complete(directory, lambda line: say(f"warning: {line}")), None)
        if found is not None:
            folder.compare(found, plan.run)
            folder.put_aside(there[: there.index(found.path)])
        elif there:
            raise UsageError(
                f"resume: {directory} has {len(there)} checkpoint(s), and all are damaged (see the warnings); "
                "restore an intact copy, or move them away to start from the beginning"
            )
        say(f"resuming from {found.path}" if found else f"no complete checkpoint in {directory}: starting from step 0")
    else:
        folder.refuse_occupied(directory, plan.run)
    key = secrets.token_hex(4)
    (directory / f".{key}").touch(exist_ok=False)
    return {"key": key, "path": None if found is None else str(found.path)}


def _await(proof: Path, rank: int) -> None:
    patience = Patience(PATIENCE_S)
    while not proof.exists():
        if patience.over():
            raise UsageError(
                f"checkpoints: rank {rank} on {MPI.Get_processor_name()} cannot see what rank 0 wrote to "
                f"{proof.parent}: is the directory shared? All ranks need access to it"
            )
        time.sleep(0.02)


class States(Sequence[State]):
    """All states of a checkpoint, servers' first; each is read when it is asked for, and again the next time."""

    def __init__(self, checkpoint: Checkpoint, names: Sequence[str] | None = None) -> None:
        self._checkpoint = checkpoint
        whole = checkpoint.manifest
        self.names = [*whole.names("server"), *whole.names("worker")] if names is None else names

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> State: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[State]: ...
    def __getitem__(self, index: int | slice) -> State | Sequence[State]:
        if isinstance(index, slice):
            return States(self._checkpoint, self.names[index])
        return self._checkpoint.state(self.names[index])
