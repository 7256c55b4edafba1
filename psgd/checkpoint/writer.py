"""Writes one rank's states in the background: training continues as soon as they are copied."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from psgd.checkpoint import folder, shards
from psgd.checkpoint.manifest import Manifest
from psgd.checkpoint.shards import ShardFile
from psgd.checkpoint.state import State
from psgd.kernels.errors import CheckpointError
from psgd.kernels.notice import say
from psgd.runtime.new_files import own_folder

PATIENCE_S = 600.0
_LONGEST_POLL_S = 0.05
_NONE: Mapping[str, State] = {}
Arrays = MutableMapping[str, "np.ndarray[Any, Any]"]


class _NeverComesError(Exception):
    """Whose parts."""


class Writer:
    """One rank's writer, with a thread while it writes. Its memory is a second copy of the state.

    Attributes:
        published: on rank 0 the newest checkpoint that is complete, or None.

    Args:
        directory: of the checkpoints, the same on all ranks, seen by all; rank 0 has claimed it.
        key: of this run, the same on all ranks: lower-case letters and digits, at most 32.
        name: of this rank's shards.
        everyone: on rank 0 the names of all ranks' shards; None elsewhere.
        keep: how many of the newest checkpoints stay (and the best); 0 is all.
        patience_s: for how long rank 0 waits for the next of the other ranks' shards.
        dead: the names of those that have died, where the run goes on without them.
    """

    def __init__(
        self,
        directory: Path,
        key: str,
        name: str,
        everyone: Sequence[str] | None = None,
        *,
        keep: int = 0,
        patience_s: float = PATIENCE_S,
        dead: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self.published: Path | None = None
        self._directory, self._key, self._name = directory, key, name
        self._everyone = everyone
        self._keep = keep
        self._patience_s = patience_s
        self._dead = dead
        self._copies: dict[str, dict[str, np.ndarray[Any, Any]]] = {}  # by shard, by tensor
        self._thread: threading.Thread | None = None
        self._error: CheckpointError | None = None
        self._abandoned = threading.Event()
        self._warned = False
        self._ranges: list[range] | None = None
        self._of = 0

    def save(
        self,
        step: int,
        state: State,
        manifest: Manifest | None = None,
        everyone: Sequence[str] | None = None,
        more: Mapping[str, State] = _NONE,
    ) -> None:
        """Copies the state and begins to write it; waits where the last one is not written yet.

        Args:
            step: of the checkpoint, the same on all ranks.
            state: the caller's again when this returns.
            manifest: on rank 0, without shards; None elsewhere.
            everyone: on rank 0 the names of those who save this time, where they are not all.
            more: further shards that this rank writes, by name.

        Raises:
            CheckpointError: the last one could not be written, or this one could not be read: a fact is not JSON, or
                the header is too long (`shards.header`).
        """
        self.wait()
        states, facts = {self._name: state, **more}, {}
        for shard, each in states.items():
            try:
                facts[shard] = json.dumps(each.facts)
            except (TypeError, ValueError, RecursionError) as error:
                raise CheckpointError(f"checkpoint of {shard}: a fact is not JSON: {error}") from None
            shards.header(each.tensors, facts[shard])
        old = self._copies
        self._copies = {shard: _copied(old.get(shard, {}), each.tensors) for shard, each in states.items()}
        self._ranges = None
        if "ranges" in state.facts:
            self._ranges = [range(*each) for each in state.facts["ranges"]]
        self._of = state.facts.get("of", 0)
        part = folder.part_path(self._directory, step, self._key)
        self._everyone = everyone or self._everyone
        self._thread = threading.Thread(
            target=self._work, args=(part, facts, manifest), name="psgd-checkpoint", daemon=True
        )
        self._thread.start()

    def check(self) -> None:
        """Raises CheckpointError where a write has failed. Waits for nothing."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    @property
    def busy(self) -> bool:
        """Whether a write is under way."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Returns when this rank's part, on rank 0 the whole checkpoint, is on the disk.

        Raises:
            CheckpointError: it could not be written.
        """
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(0.2)  # in pieces, so that signals are seen
        self._thread = None
        self.check()

    def abandon(self) -> None:
        """The run fails: what is not complete never will be, and nobody waits for it."""
        self._abandoned.set()

    def tidy(self) -> None:
        """Removes what was left out. To be called on one rank at the end, when all that live have waited."""
        folder.remove_parts(self._directory, self._key)

    def _work(self, part: Path, facts: Mapping[str, str], manifest: Manifest | None) -> None:
        if self._abandoned.is_set():  # another attempt may have cleared the folder already
            return
        writing = self._name
        try:
            own_folder(part)
            for writing, copies in self._copies.items():
                if not State(copies).finite:
                    (part / f"{writing}.nan").touch()
                own = (self._ranges, self._of) if writing == self._name else ()
                shards.write(part, writing, copies, facts[writing], *own)
            if manifest is not None:
                written = self._collect(part)
                if any((part / f"{shard.name}.nan").exists() for shard in written):
                    self._leave_out(manifest.step)
                    return
                self.published = folder.publish(self._directory, part, manifest, written)
                folder.remove_parts(self._directory, self._key, manifest.step)  # all are done with earlier steps
                if self._keep:
                    folder.prune(self._directory, self._keep)
        except _NeverComesError as error:
            # What is there stays: those that live may be writing to it, or come to it later. See `tidy`.
            say(f"warning: {part.name}: {error} died before its part was written: this checkpoint is left out")
        except Exception as error:
            if manifest is None and self._dead() and not part.is_dir():  # left out after a death, and removed
                return
            with contextlib.suppress(OSError):
                for each in self._copies:
                    (part / f"{each}.failed").touch()  # an empty file: a full disk has room for it
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            self._error = CheckpointError(f"checkpoint {part}: {writing} cannot be written: {reason}")

    def _leave_out(self, step: int) -> None:
        """A run that has diverged must not push out the checkpoints from before."""
        folder.remove_parts(self._directory, self._key, step + 1)
        if not self._warned:
            self._warned = True
            newest = "none yet" if self.published is None else self.published.name
            say(
                f"warning: step {step}: NaN or infinity in the parameters: such steps are not saved; the newest "
                f"checkpoint is {newest}"
            )

    def _collect(self, part: Path) -> list[ShardFile]:
        """Waits until all ranks' shards are on the disk."""
        missing = dict.fromkeys(self._everyone or (self._name,))
        found: dict[str, ShardFile] = {}
        last, pause = time.monotonic(), 0.001
        while True:
            for name in [name for name in missing if name not in found]:
                shard = shards.written(part, name)
                if shard is not None:
                    found[name] = shard
                    last, pause = time.monotonic(), 0.001
                elif (part / f"{name}.failed").exists():
                    raise CheckpointError(f"{name} could not write its part")
            absent = [name for name in missing if name not in found]
            if not absent:
                return [found[name] for name in missing]
            if lost := [name for name in absent if name in self._dead()]:
                raise _NeverComesError(", ".join(lost))
            if self._abandoned.is_set():
                raise CheckpointError("the run has failed")
            if time.monotonic() - last > self._patience_s:
                raise CheckpointError(
                    f"nothing from {', '.join(absent[:8])} for {self._patience_s:g} s; "
                    f"can all ranks see {self._directory}?"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_POLL_S)


def _copied(copies: Arrays, tensors: Arrays) -> "dict[str, np.ndarray[Any, Any]]":
    """Copies of the tensors, in the memory of older copies where it fits."""
    made = {}
    for name, tensor in tensors.items():
        copy = copies.get(name)
        if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
            copy = np.empty(tensor.shape, tensor.dtype)
        np.copyto(copy, tensor)
        made[name] = copy
    return made
