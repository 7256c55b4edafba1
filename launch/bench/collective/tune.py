"""`--tune`: times every algorithm at each size, and makes the table that later runs choose by."""

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import click
import numpy as np
from mpi4py import MPI

from psgd.collectives import Communicator
from psgd.collectives.algorithms import catalog, intranode
from psgd.collectives.dispatch import tuning
from psgd.collectives.shm import layout
from psgd.kernels.errors import AgreedUsageError, UsageError
from psgd.launch.bench.collective.contenders import Buffers, Contender, out_of_place
from psgd.launch.bench.collective.ranks import mpi_name, rounds_of, timed, verify
from psgd.launch.bench.problem import VERBS, BenchOptions, Problem
from psgd.launch.bench.sizes import format_seconds, format_size

MARGIN = 1.05  # how much faster a successor must be
INLINE = "inline"
SHORT = intranode.BEHIND
"""Those that have a size limit, and a short way through where the table names them."""
Timings = Mapping[str, float]


def run(comm: MPI.Intracomm, options: BenchOptions, sizes: Sequence[int], as_json: bool) -> None:
    """Measures, prints and writes the table on rank 0. Collective, blocks.

    Args:
        comm: all ranks.
        options: the collective, dtype, operation and repeats; private buffers are used.
        sizes: bytes, ascending.
        as_json: print the entry instead of a table.

    Raises:
        WrongResultError: an algorithm errs, on all ranks.
        AgreedUsageError: the table cannot be written, on all ranks.
    """
    measured: list[tuple[int, Timings]] = []
    with contextlib.ExitStack() as stack:
        able = candidates(comm, options)
        ours = {name: stack.enter_context(_communicator(comm, options, name)) for name in able}
        nodes = next(iter(ours.values())).nodes
        if comm.rank == 0 and not as_json:
            click.echo(_line("size", able, "fastest"))
        for nbytes in sizes:
            measured.append(_measure(comm, options, nbytes, ours))
            if comm.rank == 0 and not as_json:
                _, seconds = measured[-1]
                cells = [format_seconds(seconds.get(name)) for name in able]
                click.echo(_line(format_size(measured[-1][0]), cells, min(seconds, key=seconds.__getitem__)))
    entry = {
        "collective": tuning.family(VERBS[options.collective]),
        "ranks": comm.size,
        "nodes": nodes,
        "limits": limits(measured),
        "mpi": mpi_name(),
        "date": date.today().isoformat(),
    }
    _write(comm, entry)
    if comm.rank == 0:
        click.echo(json.dumps(entry) if as_json else _said(entry))


def limits(measured: Sequence[tuple[int, Timings]]) -> list[list[Any]]:
    """The table's limits from what was measured: an algorithm follows another where it is clearly faster.

    Limits lie at the geometric mean of the two sizes. Inline can only be the first; it and chunks hold up to
    what fits behind a descriptor.

    Args:
        measured: size and seconds by algorithm; sizes ascending, at least one, none without an algorithm.
    """
    chosen: list[str] = []
    for nbytes, seconds in measured:
        can = {name: value for name, value in seconds.items() if name not in SHORT or _fits(name, nbytes, chosen)}
        fastest = min(can, key=can.__getitem__)
        if chosen and chosen[-1] in can and can[chosen[-1]] < MARGIN * can[fastest]:
            fastest = chosen[-1]
        chosen.append(fastest)
    result: list[list[Any]] = []
    for i in range(1, len(chosen)):
        if chosen[i] != chosen[i - 1]:
            between = math.isqrt(measured[i - 1][0] * measured[i][0])
            most = layout.INLINE_BYTES if chosen[i - 1] in SHORT else between
            result.append([min(between, most), chosen[i - 1]])
    last = chosen[-1]
    if last in SHORT:  # nothing larger was measured, but larger calls will come
        result.append([min(measured[-1][0], layout.INLINE_BYTES), last])
        others = [name for name in measured[-1][1] if name not in SHORT]
        last = min(others, key=measured[-1][1].__getitem__, default="slots")
    return [*result, [None, last]]


def _fits(name: str, nbytes: int, chosen: Sequence[str]) -> bool:
    return nbytes <= layout.INLINE_BYTES and (name != INLINE or set(chosen) <= {INLINE})


def candidates(comm: MPI.Intracomm, options: BenchOptions) -> list[str]:
    """The algorithms to choose from for a collective on these ranks. Collective.

    Where all share memory they are those that use it, and MPI's: a message algorithm in the table would also take
    registered arrays off their fast path. Elsewhere they are those over messages, and MPI's.
    """
    verb = VERBS[options.collective]
    able = [name for name in catalog.names(verb, catalog.NODE) if _works(comm, options, name)]
    others = (catalog.MPI,) if able else (catalog.MESSAGES, catalog.NODES, catalog.MPI)
    return able + [name for name in catalog.names(verb, *others) if _works(comm, options, name)]


def _works(comm: MPI.Intracomm, options: BenchOptions, name: str) -> bool:
    """Tries an algorithm, on all ranks alike; one that is refused, or hands over to another one, does not work.

    It gets a communicator of its own, which may be of no use any more after a refusal where ranks share no memory.
    """
    problem = Problem(options, 1, comm.rank, comm.size)
    buffers = Buffers.make(problem, np.zeros)
    with _communicator(comm, options, name) as ours, contextlib.suppress(UsageError):
        out_of_place(name, ours, problem, buffers, _op(options), algorithm=name).call()
        return bool(ours.last[0] == name)
    return False


def _op(options: BenchOptions) -> Any:
    return {"sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX}.get(options.op, options.op)


@contextlib.contextmanager
def _communicator(comm: MPI.Intracomm, options: BenchOptions, name: str) -> Iterator[Communicator]:
    """A communicator for one algorithm, without the user's table.

    Small sums have a short way through by the table, so for what is made for them it gets a table that names it.
    """
    with tempfile.TemporaryDirectory(prefix="psgd-tune-") as folder:
        table = Path(folder, "tuning.json")
        table.write_text(json.dumps({"format": tuning.FORMAT, "entries": []}))
        if name in SHORT:
            entry = {"collective": tuning.family(VERBS[options.collective]), "ranks": comm.size, "nodes": 1}
            tuning.write(table, {**entry, "limits": [[layout.INLINE_BYTES, name], [None, "slots"]]})
        before = os.environ.get("PSGD_TUNING")
        os.environ["PSGD_TUNING"] = str(table)
        try:
            ours = Communicator(comm)
        finally:
            del os.environ["PSGD_TUNING"]
            if before is not None:
                os.environ["PSGD_TUNING"] = before
    with ours:
        yield ours


def _measure(
    comm: MPI.Intracomm, options: BenchOptions, nbytes: int, ours: Mapping[str, Communicator]
) -> tuple[int, dict[str, float]]:
    problem = Problem(options, nbytes, comm.rank, comm.size)
    source, buffers = problem.source(), Buffers.make(problem, np.empty)
    contenders: list[Contender] = []
    for name, communicator in ours.items():
        chosen = {} if name in SHORT else {"algorithm": name}
        if name not in SHORT or problem.nbytes <= layout.INLINE_BYTES:
            contenders.append(out_of_place(name, communicator, problem, buffers, _op(options), **chosen))
    verify(comm, problem, contenders, source, next(iter(ours.values())))
    seconds = np.median(timed(rounds_of(comm, contenders, source), problem.nbytes, options.repeats), axis=1)
    return problem.nbytes, {c.name: float(value) for c, value in zip(contenders, seconds, strict=True)}


def _write(comm: MPI.Intracomm, entry: dict[str, Any]) -> None:
    failed = ""
    if comm.rank == 0:
        try:
            tuning.write(tuning.path(), entry)
        except OSError as error:
            failed = f"--tune: {tuning.path()} cannot be written: {error.strerror or error}; set PSGD_TUNING"
    failed = comm.bcast(failed, 0)
    if failed:
        raise AgreedUsageError(failed)


def _said(entry: Mapping[str, Any]) -> str:
    parts, before = [], ""
    for limit, name in entry["limits"]:
        parts.append(f"{name} {f'above {before}' if before else 'always'}" if limit is None else f"{name} to {limit} B")
        before = f"{limit} B"
    return f"{entry['collective']} on {entry['ranks']} ranks: {', '.join(parts)}\nwrote {tuning.path()}"


def _line(size: str, cells: Sequence[str], fastest: str) -> str:
    names = {"recursive_doubling": "rec.doubl.", "rabenseifner": "rabenseif.", "hierarchical": "hierarch."}
    return f"{size:>9} {' '.join(f'{names.get(cell, cell):>10}' for cell in cells)}  {fastest}"
