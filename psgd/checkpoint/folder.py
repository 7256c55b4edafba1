"""A directory of checkpoints: which are there and whole, publishing one, and removing old ones."""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from psgd.checkpoint import manifest as manifests
from psgd.checkpoint import shards
from psgd.checkpoint.files import open_plain, sync_folder
from psgd.checkpoint.manifest import Manifest
from psgd.checkpoint.shards import ShardFile
from psgd.checkpoint.state import State
from psgd.kernels.errors import CheckpointError, UsageError
from psgd.runtime.new_files import make_folder

_CLAIMED = "checkpoints: another run is writing to {}; use another folder for this one"
_READY = re.compile(r"step-(\d{9,18})")
_PART = re.compile(r"step-(\d{9,18})\.([a-z0-9]{1,32})\.part")


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
            if shard.name not in self.manifest.leaders:
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
        old = ready.with_name(f"{ready.name}.gone{secrets.token_hex(8)}.part")
        ready.rename(old)
    part.rename(ready)
    sync_folder(directory)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
    return ready


def open_checkpoint(path: Path) -> Checkpoint:
    """Reads the manifest of one folder. Raises CheckpointError where it is missing or damaged."""
    return Checkpoint(path, manifests.read(path))


def folders(directory: Path) -> list[Path]:
    """All folders with a complete checkpoint's name, newest first. Raises CheckpointError: it cannot be listed."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{directory}: cannot be listed: {getattr(error, 'strerror', None) or error}") from None
    found = [(int(match[1]), name) for name in names if (match := _READY.fullmatch(name))]
    return [directory / name for _, name in sorted(found, reverse=True)]


def complete(directory: Path, warn: Callable[[str], None]) -> Iterator[Checkpoint]:
    """The complete checkpoints of a directory, newest first; each is verified whole before it is given.

    Args:
        directory: may be missing.
        warn: gets one line for each that is damaged, and why; it is skipped.
    """
    for path in folders(directory):
        try:
            found = open_checkpoint(path)
            if path != ready_path(directory, found.manifest.step):
                raise CheckpointError(f"{path}: its manifest says step {found.manifest.step}")
            found.verify()
        except (CheckpointError, OSError) as error:
            warn(f"checkpoint {path.name} is skipped: {error}")
        else:
            if not found.manifest.sealed:
                warn(f"checkpoint {path.name}: {manifests.UNCHECKED}")
            yield found


def compare(found: Checkpoint, run: Mapping[str, object]) -> None:
    """Raises UsageError where a checkpoint's run had other options than `run` has; numbers of ranks may differ."""
    if (name := _differing(found, run)) is not None:
        raise UsageError(
            f"resume: {found.path} is from a run with {name} {_brief(found.manifest.run.get(name))}, but this run has "
            f"{_brief(run[name])}: use the same value, or another folder"
        )


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def refuse_occupied(directory: Path, run: Mapping[str, object]) -> None:
    """Raises UsageError where there are checkpoints: this run is not to resume, and must not mix its own with them."""
    for path in folders(directory):
        try:
            same = _differing(open_checkpoint(path), run) is None
        except CheckpointError:
            same = False
        if same:
            raise UsageError(
                f"checkpoints: {directory} has {path.name} from a run with the same options: continue that run with "
                "--resume (resume=True), or use another folder for this one"
            )
        raise UsageError(
            f"checkpoints: {directory} has {path.name} from another run: resume that run (--resume, resume=True), or "
            "use another folder for this one"
        )


def _differing(found: Checkpoint, run: Mapping[str, object]) -> str | None:
    """The first name of `run` under which the checkpoint has something else, or None."""
    was = found.manifest.run
    names = (name for name in run if name not in ("workers", "servers", "files"))
    return next((name for name in names if was.get(name) != run[name]), None)


def put_aside(paths: Sequence[Path]) -> None:
    """Renames damaged checkpoints, so that none is taken for a newer one than those still to come; nothing is lost."""
    for path in paths:
        name = next(n for n in range(1, 10**6) if not path.with_name(f"{path.name}.damaged{n}").exists())
        path.rename(path.with_name(f"{path.name}.damaged{name}"))


def readable(directory: Path) -> list[Checkpoint]:
    """Those whose manifests can be read, newest first; their shards are not looked at."""
    found = []
    for path in folders(directory):
        with contextlib.suppress(CheckpointError):
            found.append(open_checkpoint(path))
    return found


def best_of(found: Sequence[Checkpoint]) -> Checkpoint | None:
    """The one with the best accuracy: of several the first, which is the nearest to the evaluation. None: no accuracy.

    Args:
        found: newest first.
    """
    evaluated = [checkpoint for checkpoint in reversed(found) if checkpoint.manifest.accuracy is not None]
    return max(evaluated, key=lambda checkpoint: checkpoint.manifest.accuracy or 0.0, default=None)


def prune(directory: Path, keep: int) -> None:
    """Removes all but the newest `keep` and the one with the best accuracy; those that cannot be read stay."""
    found = readable(directory)
    kept = best_of(found)
    for checkpoint in found[max(1, keep) :]:
        if checkpoint is not kept:
            _remove(checkpoint.path)


def _remove(path: Path) -> None:
    """Renames first: a folder with a checkpoint's name is whole even while it goes."""
    gone = path.with_name(f"{path.name}.gone{secrets.token_hex(8)}.part")
    path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def newest(directory: Path) -> Checkpoint | None:
    """The newest checkpoint whose manifest can be read; its shards are not looked at. None where there is none."""
    for path in folders(directory):
        with contextlib.suppress(CheckpointError):
            return open_checkpoint(path)
    return None


def how_to_resume(directory: Path | None) -> str:
    """What an interrupted run has saved, and how to go on from there: one line."""
    if directory is None:
        return "nothing was saved; --checkpoint-dir and --checkpoint-every save during a run"
    try:
        found = newest(directory)
    except CheckpointError:
        found = None
    if found is None:
        return f"there is no complete checkpoint in {directory}; the same command starts from the beginning"
    step = f"{found.manifest.step:,}"
    return f"the newest checkpoint is {found.path}, at step {step}; the same command with --resume continues from it"


def check_writable(directory: Path) -> None:
    """Looks whether `claim` will succeed, and makes nothing.

    Raises:
        UsageError: another run of this host writes there, or it cannot be made or written.
    """
    above = next(each for each in (directory, *directory.absolute().parents) if each.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        cause = "no permission" if above.is_dir() else f"{above} is a file"
        raise UsageError(f"checkpoints: {directory} cannot be written: {cause}")
    with contextlib.suppress(CheckpointError), open_plain(directory / ".lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(_CLAIMED.format(directory)) from None
        except OSError:
            pass  # a file system without locks


class Claim:
    """A run's hold on a directory, until it is closed or its process ends."""

    def __init__(self, number: int) -> None:
        self._number = number

    def close(self) -> None:
        """Lets go."""
        if self._number >= 0:
            os.close(self._number)
            self._number = -1

    __del__ = close  # of a run that failed before anybody had it to close


def _open_lock(path: Path) -> int:
    """Opens the lock's file, which nobody else can: who can read it can hold it."""
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, ".lock in it is not a plain file", str(path))
    with contextlib.suppress(OSError):
        os.fchmod(number, 0o600)  # an older version may have made it
    return number


def claim(directory: Path) -> Claim:
    """Takes a directory for one run, and removes what dead ones left half written. For rank 0, before anyone writes.

    Raises:
        UsageError: another run writes there (on another host: where the file system has locks), or it cannot be made.
    """
    held = hold(directory)
    for path, _, _ in _parts(directory):
        shutil.rmtree(path, ignore_errors=True)
    return held


def remove_parts(directory: Path, key: str, before: int | None = None) -> None:
    """Removes what a run has begun to save and never completes. Only where no rank can come to write there any more.

    Args:
        directory: of the checkpoints.
        key: the run's.
        before: of earlier steps than this one; None: of all.
    """
    with contextlib.suppress(OSError):  # the next claim removes it
        for path, step, whose in _parts(directory):
            if whose == key and (before is None or step < before):
                shutil.rmtree(path, ignore_errors=True)


def _parts(directory: Path) -> list[tuple[Path, int, str]]:
    """Checkpoints that are not complete, with their steps and the keys of their runs."""
    with os.scandir(directory) as entries:
        found = [(directory / each.name, _PART.fullmatch(each.name)) for each in entries if not each.is_symlink()]
    return [(path, int(match[1]), match[2]) for path, match in found if match and path.is_dir()]


def hold(directory: Path) -> Claim:
    """As `claim`, and removes nothing: for who goes on in the place of a rank that had claimed it and has died.

    Raises:
        UsageError: as `claim`.
    """
    try:
        make_folder(directory)
        number = _open_lock(directory / ".lock")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        if isinstance(error, OSError) and error.errno == errno.ELOOP:
            reason = ".lock in it is a symbolic link"
        raise UsageError(f"checkpoints: {directory} cannot be written: {reason}") from None
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(number)
        raise UsageError(_CLAIMED.format(directory)) from None
    except OSError:
        pass  # a file system without locks
    return Claim(number)
