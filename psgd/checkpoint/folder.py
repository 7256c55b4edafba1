"""A directory of checkpoints: which are there and whole, publishing one, and removing old ones."""

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from psgd.checkpoint import manifest as manifests
from psgd.checkpoint import shards
from psgd.checkpoint.files import sync_folder
from psgd.checkpoint.manifest import Manifest
from psgd.checkpoint.shards import ShardFile
from psgd.checkpoint.state import State
from psgd.kernels.errors import CheckpointError, UsageError

_READY = re.compile(r"step-(\d{9,18})")
_PART = re.compile(r"step-\d{9,18}\.[a-z0-9]{1,32}\.part")


class Checkpoint(NamedTuple):
    """One that is complete, as its manifest says.

    Attributes:
        path: its folder.
        manifest: read from it.
    """

    path: Path
    manifest: Manifest

    def state(self, name: str) -> State:
        """Reads one rank's state. Raises CheckpointError: no such shard, it has been damaged, or holds NaN."""
        state = shards.read(self.path, self.manifest.shard(name))
        if not state.finite:
            raise CheckpointError(f"{self.path}: NaN or infinity in the parameters of {name}")
        return state

    def verify(self) -> None:
        """Reads all, and compares every SHA-256 and what shards and manifest both say.

        Raises:
            CheckpointError: at the first that is not right.
        """
        for shard in self.manifest.shards:
            facts = shards.verify(self.path, shard)
            if shard.name != self.manifest.leader:
                continue
            for name, value in (("samples", self.manifest.samples), ("version", self.manifest.version)):
                if facts.get(name, value) != value:
                    raise CheckpointError(
                        f"{self.path}: the manifest says {name} {value}, {shard.name} says {str(facts[name])[:60]}"
                    )


def part_path(directory: Path, step: int, key: str) -> Path:
    """Where a checkpoint is while it is written; `key` is the run's."""
    return directory / f"step-{step:09d}.{key}.part"


def ready_path(directory: Path, step: int) -> Path:
    """Where a complete checkpoint is."""
    return directory / f"step-{step:09d}"


def publish(directory: Path, part: Path, manifest: Manifest, written: Sequence[ShardFile]) -> Path:
    """Makes a checkpoint of a folder whose shards are all on the disk. One of the same step is replaced.

    Raises:
        OSError: it cannot be written.
    """
    manifests.write(part, manifest, written)
    sync_folder(part)
    ready = ready_path(directory, manifest.step)
    old = None
    if ready.exists():
        old = ready.with_name(f"{ready.name}.gone{os.getpid()}.part")
        ready.rename(old)
    part.rename(ready)
    sync_folder(directory)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
    return ready


def open_checkpoint(path: Path) -> Checkpoint:
    """Reads the manifest of one folder. Raises CheckpointError where there is no sound one."""
    return Checkpoint(path, manifests.read(path))


def folders(directory: Path) -> list[Path]:
    """All folders with a complete checkpoint's name, newest first. Raises CheckpointError: it cannot be listed."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{directory}: cannot be listed: {error}") from None
    found = [(int(match[1]), name) for name in names if (match := _READY.fullmatch(name))]
    return [directory / name for _, name in sorted(found, reverse=True)]


def complete(directory: Path, warn: Callable[[str], None]) -> Iterator[Checkpoint]:
    """The complete checkpoints of a directory, newest first; each is verified whole before it is given.

    Args:
        directory: may be missing.
        warn: gets one line for each that is damaged, and why; it is passed over.
    """
    for path in folders(directory):
        try:
            found = open_checkpoint(path)
            if path != ready_path(directory, found.manifest.step):
                raise CheckpointError(f"{path}: its manifest is of step {found.manifest.step}")
            found.verify()
        except (CheckpointError, OSError) as error:
            warn(f"checkpoint {path.name} is passed over: {error}")
        else:
            if not found.manifest.sealed:
                warn(f"checkpoint {path.name}: {manifests.UNCHECKED}")
            yield found


def put_aside(paths: Sequence[Path]) -> None:
    """Renames damaged checkpoints, so that none is taken for a newer one than those still to come; nothing is lost."""
    for path in paths:
        name = next(n for n in range(1, 10**6) if not path.with_name(f"{path.name}.damaged{n}").exists())
        path.rename(path.with_name(f"{path.name}.damaged{name}"))


def prune(directory: Path, keep: int) -> None:
    """Removes all but the newest `keep` and the one with the best accuracy; those that cannot be read stay."""
    found = []
    for path in folders(directory):
        try:
            found.append(open_checkpoint(path))
        except CheckpointError:
            continue
    evaluated = [checkpoint for checkpoint in found if checkpoint.manifest.accuracy is not None]
    best = max(evaluated, key=lambda checkpoint: checkpoint.manifest.accuracy or 0.0, default=None)
    for checkpoint in found[max(1, keep) :]:
        if checkpoint is not best:
            _remove(checkpoint.path)


def _remove(path: Path) -> None:
    """Renames first: a folder with a checkpoint's name is whole even while it goes."""
    gone = path.with_name(f"{path.name}.gone{os.getpid()}.part")
    path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


class Claim:
    """A run's hold on a directory, until it is closed or its process ends."""

    def __init__(self, number: int) -> None:
        self._number = number

    def close(self) -> None:
        """Lets go."""
        if self._number >= 0:
            os.close(self._number)
            self._number = -1


def claim(directory: Path) -> Claim:
    """Takes a directory for one run, and removes what dead ones left half written. For rank 0, before anyone writes.

    Raises:
        UsageError: another run writes there (on another host: where the file system has locks), or it cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        number = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    except (OSError, ValueError) as error:
        raise UsageError(f"checkpoints: {directory} cannot be written: {error}") from None
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(number)
        raise UsageError(
            f"checkpoints: another run writes into {directory}; give this one a folder of its own"
        ) from None
    except OSError:
        pass  # a file system without locks
    for entry in os.scandir(directory):
        if _PART.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
    return Claim(number)
