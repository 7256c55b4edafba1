"""The log of what is applied and which workers continue, written by server 0 and followed by all servers.

Version = groups applied. Clock = a worker's logged pushes. A `LogEntry` is what a strategy decides at once: the
contributions of a group, then the workers that are released. A group may stay open over several entries: it takes
its step with the first entry that does not leave it open. Without contributions and without an open group an entry only
releases. At an entry with a checkpoint every server, and every worker that waits, has its state saved.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint.requests import SAVE_AND_STOP
from psgd.kernels.errors import ContractError


class Contribution(NamedTuple):
    """One push in a group.

    Attributes:
        worker: the worker's index.
        push: number of the push, from 1.
        weight: multiplies the contribution's samples; 1 unless a strategy scales it.
    """

    worker: int
    push: int
    weight: float = 1.0


class LogEntry(NamedTuple):
    """A group to apply as one optimizer step, and the workers released right after it.

    Attributes:
        group: contributions in the order in which they are summed; may be empty.
        release: workers that get the parameters as they then are.
        ends_log: nothing follows; workers get their last parameters.
        stays_open: the group waits for more contributions, and no step is taken yet.
        checkpoint: one is made before the release (`psgd.checkpoint.requests.SAVE`); `SAVE_AND_STOP` asks all to stop
            after it; 0 is none.
    """

    group: tuple[Contribution, ...] = ()
    release: tuple[int, ...] = ()
    ends_log: bool = False
    stays_open: bool = False
    checkpoint: int = 0


class CheckpointPoint(NamedTuple):
    """Where in the log a checkpoint was made.

    Attributes:
        entries: how many came before it, itself included.
        version: groups applied.
        clocks: of each worker, its pushes applied.
        open_contributions: those with samples in the group that is open.
    """

    entries: int
    version: int
    clocks: list[int]
    open_contributions: int


def entry_words(workers: int) -> int:
    """Length in int64 words of an encoded entry for so many workers: the room to receive one."""
    return 3 + 4 * workers


def encode(entry: LogEntry, out: NDArray[np.int64]) -> int:
    """Writes the entry to `out` (int64, `entry_words(workers)` long) and returns the words used."""
    flags = entry.ends_log + 2 * entry.stays_open + 4 * entry.checkpoint
    out[0], out[1], out[2] = len(entry.group), len(entry.release), flags
    at = 3
    for member in entry.group:
        out[at], out[at + 1] = member.worker, member.push
        out[at + 2 : at + 3].view(np.float64)[0] = member.weight
        at += 3
    for worker in entry.release:
        out[at] = worker
        at += 1
    return at


def decode(words: NDArray[np.int64], workers: int) -> LogEntry:
    """Reads what `encode` wrote.

    Raises:
        ContractError: lengths or workers that cannot be.
    """
    if words.size < 3:
        raise ContractError(f"order: expected at least 3 words, got {words.size}")
    members, releases, flags = (int(word) for word in words[:3])
    if not (0 <= members <= workers and 0 <= releases <= workers and 0 <= flags < 4 * (SAVE_AND_STOP + 1)):
        raise ContractError(
            f"order: expected at most {workers} members, got {members}, {releases} releases and flags {flags}"
        )
    if words.size < 3 + 3 * members + releases:
        raise ContractError(f"order: truncated entry of {words.size} words")
    weights = words.view(np.float64)
    group = tuple(
        Contribution(int(words[at]), int(words[at + 1]), float(weights[at + 2])) for at in range(3, 3 + 3 * members, 3)
    )
    release = tuple(int(word) for word in words[3 + 3 * members : 3 + 3 * members + releases])
    _check_workers([m.worker for m in group], workers)
    _check_workers(release, workers)
    return LogEntry(group, release, bool(flags & 1), bool(flags & 2), flags >> 2)


def _check_workers(indexes: Sequence[int], workers: int) -> None:
    if any(not 0 <= index < workers for index in indexes):
        raise ContractError(f"order: expected workers below {workers}, got {list(indexes)}")
