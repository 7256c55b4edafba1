"""A Chrome trace of all ranks: JSON that chrome://tracing and ui.perfetto.dev open. A process is a rank."""

import contextlib
import gzip
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from psgd.kernels.errors import DataError, UsageError
from psgd.metrics.trace import passes
from psgd.metrics.trace.alignment import Offset, aligned
from psgd.metrics.trace.event_ring import KINDS, parse
from psgd.metrics.trace.self_time import Segment
from psgd.runtime import new_files
from psgd.runtime.new_files import replacing

TRACKS = ("main thread", "checkpoint writer")
_BEGIN = '{"displayTimeUnit": "ms", "traceEvents": ['
_BLOCK = 1 << 14
_LOST = KINDS.index("lost")


def check(what: str, path: Path) -> None:
    """Refuses a file that cannot be written. It is renamed into its place, so a device would be replaced by it.

    Args:
        what: the option, for the message.
        path: the file.

    Raises:
        UsageError: it is a folder or a device, or cannot be made.
    """
    new_files.check(what, path, replaced=True)
    if path.exists() and not path.is_file():
        raise UsageError(f"{what} {path}: expected a plain file or a new one, but it is a device or a pipe")


def part_path(path: Path, rank: int) -> Path:
    """Where a rank's events are until they are merged into the trace `path`."""
    return path.with_name(f"{path.name}.rank-{rank:04d}.part")


def parts(path: Path) -> list[Path]:
    """Those that an aborted run has left."""
    return sorted(path.parent.glob(f"{_escaped(path.name)}.rank-*.part"))


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def write(path: Path, recorded: Iterable[tuple[dict[str, Any], NDArray[Any]]]) -> int:
    """Writes the file, compressed where its name ends in .gz; one rank's events at a time are in memory.

    Args:
        path: appears once it is whole.
        recorded: for each rank its facts and events, as `parse` gives them.

    Returns:
        How many events there are in it.

    Raises:
        OSError: it cannot be written.
    """
    count = 0
    with replacing(path) as raw, _text(raw, path.suffix == ".gz") as file:
        file.write(_BEGIN + "\n")
        between = ""
        for facts, events in recorded:
            count += len(events)
            for lines in _lines(facts, events):
                file.write(between + ",\n".join(lines))
                between = ",\n"
        file.write("\n]}\n")
    return count


@contextlib.contextmanager
def _text(raw: Any, compressed: bool) -> Iterator[TextIO]:
    binary = gzip.GzipFile("", "wb", 5, raw, 0) if compressed else raw
    text = io.TextIOWrapper(binary, encoding="utf-8", write_through=True)
    yield text
    text.flush()
    text.detach()
    if compressed:
        binary.close()


def _lines(facts: dict[str, Any], events: NDArray[Any]) -> Iterator[list[str]]:
    """The events of a rank as JSON, in blocks; whole nanoseconds, so that spans that touch do not overlap."""
    if "began" not in facts:  # it ended before all had begun
        return
    rank = int(facts["rank"])
    name = f"rank {rank}: {facts['role']} on {facts['host']}"
    tracks = np.unique(events["track"]).tolist()
    heads: list[dict[str, Any]] = [
        {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": name}},
        {"ph": "M", "pid": rank, "name": "process_sort_index", "args": {"sort_index": rank}},
    ]
    for track in tracks:
        label = TRACKS[track] if track < len(TRACKS) else f"thread {track}"
        heads.append({"ph": "M", "pid": rank, "tid": track, "name": "thread_name", "args": {"name": label}})
    yield [json.dumps(head) for head in heads]
    first = Offset(*facts["first"])
    last = Offset(*facts["last"]) if facts.get("last") else None
    names = [f'"name": "{kind}", "cat": "psgd", "ph": "X", "pid": {rank}, "tid": ' for kind in KINDS]

    def moments(times: NDArray[Any]) -> list[int]:
        found: list[int] = np.rint(1e9 * (aligned(times, first, last) - facts["began"])).astype(np.int64).tolist()
        return found

    is_lost = events["kind"] == _LOST
    deaths, events = events[is_lost], events[~is_lost]
    for at, dead in zip(moments(deaths["start"]), deaths["number"].tolist(), strict=True):
        mark = {"name": "lost", "cat": "psgd", "ph": "i", "s": "g", "pid": rank, "tid": 0, "ts": at / 1000}
        yield [json.dumps(mark | {"args": {"rank": dead}})]
    for begin in range(0, len(events), _BLOCK):
        block = events[begin : begin + _BLOCK]
        starts, stops = moments(block["start"]), moments(block["stop"])
        rows = zip(
            starts, stops, block["kind"].tolist(), block["track"].tolist(), block["number"].tolist(), strict=True
        )
        yield [
            f'{{{names[kind]}{track}, "ts": {start / 1000:.3f}, "dur": {(stop - start) / 1000:.3f}'
            + (passes.arguments(KINDS[kind], number) if number else "}")
            for start, stop, kind, track, number in rows
        ]


def read(path: Path) -> list[tuple[str, list[Segment]]]:
    """Reads such a file.

    Returns:
        For each rank its name, and the spans of its main thread in whole nanoseconds, in the order of the file.

    Raises:
        DataError: it cannot be read, or is no Chrome trace with names of processes.
    """
    return [(name, [(start, stop, kind) for start, stop, kind, _ in spans]) for name, spans in _read(path)]


def read_passes(path: Path) -> list[tuple[str, list[passes.Pass]]]:
    """Reads the passes of a pipeline from such a file: none of ranks that are in no pipeline.

    Returns:
        For each rank its name, and its passes in the order of the file.

    Raises:
        DataError: as `read`.
    """
    return [
        (name, [found for start, stop, kind, more in spans if (found := passes.decode(kind, start, stop, more))])
        for name, spans in _read(path)
    ]


def _read(path: Path) -> list[tuple[str, list[tuple[int, int, str, dict[str, Any]]]]]:
    """For each rank its name, and from, to, kind and arguments of the spans of its main thread."""
    try:
        content = path.read_bytes()
        events = json.loads(gzip.decompress(content) if is_compressed(content) else content)["traceEvents"]
        names = {event["pid"]: str(event["args"]["name"]) for event in events if event.get("name") == "process_name"}
        spans: dict[int, list[tuple[int, int, str, dict[str, Any]]]] = {rank: [] for rank in sorted(names)}
        for event in events:
            if event["ph"] == "X" and event["tid"] == 0:
                start = round(1000 * event["ts"])
                stop = start + round(1000 * event["dur"])
                spans[event["pid"]].append((start, stop, str(event["name"]), dict(event.get("args", {}))))
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(f"trace {path}: expected a Chrome trace of psgd train --trace: {reason}") from None
    return [(names[rank], mine) for rank, mine in spans.items()]


def is_compressed(content: bytes) -> bool:
    """Whether this is the beginning of a gzip file."""
    return content[:2] == b"\x1f\x8b"


def is_trace(path: Path) -> bool:
    """Whether a file begins as a trace does, and not as a log."""
    try:
        with path.open("rb") as file:
            begin = file.read(len(_BEGIN))
    except OSError:
        return False
    return is_compressed(begin) or begin == _BEGIN.encode()


def merge_parts(path: Path) -> int:
    """Merges what the ranks of an aborted run have left into the trace, and removes it.

    Returns:
        Of how many ranks there was something; with 0 nothing is written.

    Raises:
        DataError: something else is there under their names.
        OSError: it cannot be read or written.
    """
    left = parts(path)
    if left:
        write(path, (parse(part.read_bytes(), str(part)) for part in left))
        remove_parts(path)
    return len(left)


def remove_parts(path: Path) -> None:
    """Removes what an aborted run has left."""
    for part in parts(path):
        with contextlib.suppress(OSError):
            part.unlink()
