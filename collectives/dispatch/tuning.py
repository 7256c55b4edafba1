"""Which algorithm a call takes, by its size: built-in limits, or those that `psgd bench ... --tune` measured.

A table is a list of entries; an entry holds for one collective, number of ranks and number of nodes, and lists sizes in
bytes, ascending, each with the algorithm up to that size; the last size is null. As a file it is JSON. Rank 0 reads
it, for all.
"""

import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from psgd.collectives.algorithms.catalog import ALGORITHMS
from psgd.collectives.arguments.descriptor import CALLS
from psgd.collectives.shm.layout import INLINE_BYTES
from psgd.kernels.errors import AgreedUsageError

FORMAT = 1
Limits = list[tuple[float, str]]
_FAMILY = {"Reduce_scatter_block": "Reduce_scatter", "Allgatherv": "Allgather"}
_KIB = 1024
_A_WAIT_BYTES = 8 * _KIB  # what a rank reads from the caches of other cores in the time of one more wait
_SLOTS_UP_TO = (512 * _KIB, 2048 * _KIB)  # with few ranks, with many


def path() -> Path:
    """The user's file: PSGD_TUNING, else psgd/tuning.json in XDG_CONFIG_HOME or ~/.config."""
    if named := os.environ.get("PSGD_TUNING"):
        return Path(named)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "psgd" / "tuning.json"


def choose(limits: Limits, nbytes: int) -> str:
    """The algorithm for a size: the first whose limit is not passed."""
    for limit, algorithm in limits:
        if nbytes <= limit:
            return algorithm
    return limits[-1][1]


def built_in(verb: str, ranks: int, local: bool, hierarchical: bool) -> Limits:
    """Limits measured on 2-core and 16-core machines and on links of 1 Gbit/s, November 2026 (docs/benchmarks.md).

    Args:
        verb: the collective.
        ranks: in the communicator.
        local: all on one node that shares memory.
        hierarchical: several nodes, each of whose ranks share memory, some with several ranks.
    """
    if local and ranks > 4 and verb in {"Allreduce", "Reduce"}:
        # Inline, a rank reads P - 1 vectors of S bytes; by chunks 2 (P - 1)/P S, and it waits once more. They are equal
        # where the difference, (P - 1)(P - 2)/P S, takes as long as a wait. A cache line cannot be cut.
        inline = max(64, _A_WAIT_BYTES * ranks // ((ranks - 1) * (ranks - 2)))
        return [(inline, "inline"), (INLINE_BYTES, "chunked"), (_SLOTS_UP_TO[1], "slots"), (np.inf, "direct")]
    if local:
        inline = 32 * _KIB if ranks == 2 else max(2 * _KIB, 64 * _KIB // ranks)
        return [(inline, "inline"), (_SLOTS_UP_TO[ranks > 4], "slots"), (np.inf, "direct")]
    if verb == "Allreduce":
        if hierarchical:
            return [(np.inf, "hierarchical")]
        return [(16 * _KIB, "recursive_doubling"), (256 * _KIB, "rabenseifner"), (np.inf, "ring")]
    if verb == "Bcast":
        return [(64 * _KIB, "binomial"), (np.inf, "chain")]
    return [(np.inf, "binomial" if verb == "Reduce" else "ring")]


def load(comm: MPI.Intracomm, nodes: int) -> dict[str, Limits]:
    """The limits of the user's file for this communicator, by collective. Collective, blocks.

    Raises:
        AgreedUsageError: the file is there but is no such table, or PSGD_TUNING names one that is not there; on all
            ranks.
    """
    message = b""
    if comm.rank == 0:
        try:
            file = path()
            if os.environ.get("PSGD_TUNING") and not file.exists():
                raise ValueError(
                    f"PSGD_TUNING: expected the file of a tuning table, got {file}, which does not exist; "
                    "make it with `psgd bench allreduce --tune`, or unset this environment variable"
                )
            message = json.dumps({"limits": _matching(read(file), comm.size, nodes)}).encode()
        except RuntimeError:  # no home, so no file in it
            message = json.dumps({"limits": {}}).encode()
        except Exception as error:  # whatever it is, the other ranks wait for an answer
            message = json.dumps({"error": str(error)}).encode()
    length = np.array([len(message)], np.int64)
    comm.Bcast(length, 0)
    raw = np.frombuffer(message, np.uint8).copy() if comm.rank == 0 else np.empty(int(length[0]), np.uint8)
    comm.Bcast(raw, 0)
    answer = json.loads(raw.tobytes())
    if "error" in answer:
        raise AgreedUsageError(answer["error"])
    return {
        verb: [(np.inf if limit is None else limit, name) for limit, name in limits]
        for verb, limits in answer["limits"].items()
    }


def read(file: Path) -> list[dict[str, Any]]:
    """Reads a table's entries; a file that is not there has none.

    Raises:
        ValueError: it cannot be read or is no such table.
    """
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ValueError(f"{file}: cannot read the tuning table: {error.strerror}; fix or unset PSGD_TUNING") from None
    fix = "; remove it or run `psgd bench allreduce --tune` again"
    try:
        table = json.loads(text)
        if table["format"] != FORMAT:
            raise ValueError(f"expected format {FORMAT}, got {table['format']!r}")
        entries: list[dict[str, Any]] = table["entries"]
        for entry in entries:
            _check(entry)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
        raise ValueError(f"{file}: not a tuning table: {type(error).__name__}: {error}{fix}") from None
    return entries


def write(file: Path, entry: dict[str, Any]) -> None:
    """Puts an entry into a table, in place of one for the same case. The file changes at once or not at all."""
    _check(entry)
    try:
        entries = read(file)
    except ValueError:
        entries = []
    case = ("collective", "ranks", "nodes")
    kept = [old for old in entries if any(old[key] != entry[key] for key in case)]
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".psgd-{secrets.token_hex(8)}.part")  # nobody can have put a link there
    try:
        with new.open("x") as stream:
            stream.write(json.dumps({"format": FORMAT, "entries": [*kept, entry]}, indent=1) + "\n")
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)


def _check(entry: dict[str, Any]) -> None:
    if entry["collective"] not in CALLS or not isinstance(entry["ranks"], int) or not isinstance(entry["nodes"], int):
        raise ValueError(f"expected a collective, ranks and nodes, got {entry!r}")
    limits = entry["limits"]
    bounds = [limit for limit, _ in limits[:-1]]
    if limits[-1][0] is not None or bounds != sorted(bounds) or not all(isinstance(bound, int) for bound in bounds):
        raise ValueError(f"expected ascending limits, the last null, got {limits!r}")
    if unknown := [name for _, name in limits if name not in ALGORITHMS]:
        raise ValueError(f"expected algorithms of {', '.join(ALGORITHMS)}, got {unknown[0]!r}")


def _matching(entries: Sequence[dict[str, Any]], ranks: int, nodes: int) -> dict[str, Any]:
    return {e["collective"]: e["limits"] for e in entries if e["ranks"] == ranks and e["nodes"] == nodes}


def family(verb: str) -> str:
    """The collective whose limits a verb goes by."""
    return _FAMILY.get(verb, verb)
