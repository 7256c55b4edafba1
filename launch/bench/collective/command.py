"""`psgd bench allreduce`, `reducescatter`, `allgather` and `bcast`: psgd's collectives beside MPI's and Gloo's."""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from psgd.collectives.algorithms import catalog
from psgd.kernels.errors import AgreedError, UsageError
from psgd.kernels.notice import counted
from psgd.launch import ranks as places
from psgd.launch.bench.collective import mpi_best
from psgd.launch.bench.collective.table import GLOO, MarkdownTable, Row, Table, objects
from psgd.launch.bench.peers import processes
from psgd.launch.bench.problem import (
    ALLGATHER,
    ALLREDUCE,
    BCAST,
    REDUCE_SCATTER,
    VERBS,
    BenchOptions,
    whole_nbytes,
)
from psgd.launch.bench.sizes import parse_sizes
from psgd.launch.output import picture
from psgd.launch.whole_numbers import Whole

RANKS = 2
SIZES = tuple(4**k for k in range(1, 14))
DEVICE_SIZES = tuple(4096 * 4**k for k in range(10))
DTYPES = (
    *("float32", "float64", "float16", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
)
OPS = ("sum", "prod", "min", "max", "mean")
ALGORITHMS = {collective: tuple(catalog.names(verb)) for collective, verb in VERBS.items()}
_WHAT = {
    ALLREDUCE: "Allreduce: the size is that of each rank's vector.",
    REDUCE_SCATTER: "Reduce_scatter_block: the size is that of the vector before it is scattered.",
    ALLGATHER: "Allgather: the size is that of the gathered vector.",
    BCAST: "Bcast: rank 0 sends a vector of this size.",
}
_HELP = """{what}

    Verifies psgd (with private and with registered buffers), MPI, and Gloo if PyTorch is installed, then times them in
    turn. A ratio above 1 means that psgd is faster. GB/s is bus bandwidth as NCCL's tests define it. By itself, the
    command starts its own ranks, and first one job for each setting of MPI that chooses an algorithm: "best" is the
    fastest of these. Started by mpirun or srun, it is one of the ranks, and MPI uses the settings given there.
    """


def _command(collective: str) -> click.Command:
    """Makes the command of one collective."""

    def run(
        *,
        sizes: str | None,
        ranks: int | None,
        plot: str | None,
        form: str,
        tune: bool,
        search: bool,
        mpiexec_args: str,
        **flags: Any,
    ) -> int:
        options = BenchOptions(collective, **{"op": "sum", **flags})
        usual = DEVICE_SIZES if options.device == "cuda" else SIZES
        nbytes = list(usual) if sizes is None else parse_sizes(sizes)
        target = None if plot is None else Path(plot)
        _check(options, ranks, target, tune)
        search = search and options.peers and options.device == "cpu" and not tune
        return _run(options, nbytes, ranks, target, form, tune, search, mpiexec_args)

    run.__doc__ = _HELP.format(what=_WHAT[collective])
    listed = ", ".join(ALGORITHMS[collective])
    decorators: list[Callable[[Any], Any]] = [
        click.option("--sizes", help="Sizes in bytes, comma-separated.  [default: 4B to 64MiB]"),
        click.option("--ranks", type=Whole(1), help=f"Number of ranks.  [default: {RANKS}]"),
        click.option(
            "--dtype", type=click.Choice(DTYPES), default=DTYPES[0], show_default=True, help="Type of the elements."
        ),
        click.option(
            "--algorithm",
            type=click.Choice(ALGORITHMS[collective]),
            metavar="NAME",
            help=f"psgd's algorithm: {listed}.",
        ),
        click.option(
            "--buffers",
            type=click.Choice(("private", "registered", "both")),
            default="both",
            show_default=True,
            help="Kind of memory that psgd uses.",
        ),
        click.option("--repeats", type=Whole(1), help="Timed repetitions per size.  [default: about 1 s]"),
        click.option("--peers/--no-peers", default=True, help="Measure MPI and Gloo too.  [default: peers]"),
        click.option(
            "--mpi-best/--no-mpi-best",
            "search",
            default=True,
            help="Find MPI's best settings.  [default: find]",
        ),
        click.option("--json", "form", flag_value="json", help="Print one JSON object per line and kind of buffer."),
        click.option("--markdown", "form", flag_value="markdown", help="Print the rows of a Markdown table."),
        click.option("--plot", metavar="FILE", help="Draw bus bandwidth against size: .png, .pdf or .svg."),
        click.option("--tune", is_flag=True, help="Time all algorithms; later runs choose by the table it writes."),
        click.option(
            "--mpiexec-args", default="", metavar="TEXT", help="More arguments for mpiexec, quoted as in a shell."
        ),
    ]
    if collective == ALLREDUCE:
        where = click.option(
            "--device",
            type=click.Choice(("cpu", "cuda")),
            default="cpu",
            show_default=True,
            help="cuda: arrays on GPUs, in place, compared with NCCL.",
        )
        decorators.append(where)
    if BenchOptions(collective).reduces:
        reduction = click.option("--op", type=click.Choice(OPS), default=OPS[0], show_default=True, help="Reduction.")
        decorators.insert(3, reduction)
    command: Any = run
    for decorate in reversed(decorators):
        command = decorate(command)
    made: click.Command = click.command(collective)(command)
    return made


def _check(options: BenchOptions, ranks: int | None, target: Path | None, tune: bool) -> None:
    """Refuses what cannot be, before MPI starts.

    Raises:
        UsageError: one line.
    """
    if options.op == "mean" and not options.dtype.startswith("float"):
        raise UsageError(f"--op mean: expected a dtype of floats, got --dtype {options.dtype}; use float32")
    if tune and (options.algorithm or target):
        raise UsageError("--tune: expected neither --algorithm nor --plot with it: it times all algorithms")
    if options.device == "cuda":
        from psgd.launch.bench.collective import on_gpu

        on_gpu.check(options, tune)
    most = max(64, 16 * (os.cpu_count() or 1))
    if places.place() is None and (ranks or 0) > most:
        raise UsageError(f"--ranks {ranks}: expected at most {most} on one machine; start more with mpirun or srun")
    if target is not None and places.speaks():
        picture.check("--plot", target)


def _run(
    options: BenchOptions,
    sizes: list[int],
    ranks: int | None,
    target: Path | None,
    form: str,
    tune: bool,
    search: bool,
    mpiexec_args: str,
) -> int:
    from psgd.launch import spawn
    from psgd.launch.bench import job

    spawn.split(mpiexec_args)
    on_cpu = options.device == "cpu"
    count = RANKS if ranks is None else ranks
    if search and places.place() is None:
        _look_for_best(options, sizes, count, mpiexec_args)

    def rank(first: bool) -> int:
        gloo = None
        if options.peers and on_cpu and not tune and processes.has_torch():
            gloo = processes.Conversation(processes.python("psgd.launch.bench.peers.gloo_process"))
        with contextlib.closing(gloo) if gloo is not None else contextlib.nullcontext():
            return with_mpi(first, gloo)

    def with_mpi(first: bool, gloo: processes.Conversation | None) -> int:
        from mpi4py import MPI

        from psgd.runtime.fail_together import guard

        comm = MPI.COMM_WORLD
        if ranks is not None:
            job.check(options.collective, ranks, comm.size, "--ranks")
        asked = dict.fromkeys(whole_nbytes(options, nbytes, comm.size) for nbytes in sizes)
        with guard(comm):
            from psgd.launch.bench.peers import cores

            if on_cpu:
                cores.pin(comm)
            else:
                cores.unpin()
            try:
                if tune:
                    from psgd.launch.bench.collective import tune as tuner

                    tuner.run(comm, options, sorted(asked), form == "json")
                else:
                    _measure(comm, options, list(asked), target if first else None, form, gloo)
            except AgreedError as error:
                if first:
                    sys.stdout.flush()
                    click.echo(f"psgd: error: {' '.join(str(error).split())}", err=True)
                    return 2 if isinstance(error, UsageError) else 1
        return 0

    fixed = ranks is not None
    return job.run(options.collective, count, rank, fixed=fixed, what="--ranks", mpiexec_args=mpiexec_args, bind=on_cpu)


def _look_for_best(options: BenchOptions, sizes: list[int], count: int, mpiexec_args: str) -> None:
    """Tries MPI's settings in jobs of their own, and leaves the result to the ranks that come after."""
    from psgd.launch import mpiexec, spawn

    if not mpiexec.one_host(os.environ, spawn.split(mpiexec_args)):
        click.echo("MPI at its best: not searched for, since ranks may run on other hosts", err=True)
        return
    asked = sorted({whole_nbytes(options, nbytes, count) for nbytes in sizes})
    best, failed = mpi_best.search(options, asked, count, mpiexec_args)
    for line in failed:
        click.echo(line, err=True)
    os.environ[mpi_best.VARIABLE] = json.dumps(best)


def _measure(
    comm: Any,
    options: BenchOptions,
    sizes: list[int],
    target: Path | None,
    form: str,
    process: processes.Conversation | None,
) -> None:
    """One rank's part; rank 0 prints, and draws where it has a `target`."""
    from psgd import collectives
    from psgd.launch.bench.collective import ranks as collective_ranks
    from psgd.launch.bench.peers.gloo import Gloo

    shown = _show if comm.rank == 0 else _quiet
    if options.device == "cuda":
        from psgd.launch.bench.collective import on_gpu

        rows = list(shown(on_gpu.measure(comm, options, sizes), options, sizes, form))
    else:
        gloo = Gloo.join(comm, process) if options.peers else None
        with collectives.Communicator(comm) as ours:
            measured = collective_ranks.measure(comm, options, sizes, ours, gloo, mpi_best.heard())
            rows = list(shown(measured, options, sizes, form))
    _draw(rows, options, target, form)


def _draw(rows: list[Row], options: BenchOptions, target: Path | None, form: str) -> None:
    if target is not None:
        from psgd.launch.bench.collective.picture import draw

        draw(rows, options, target)
        if not form:
            click.echo(f"wrote {target}")


def _quiet(rows: Iterable[Row], options: BenchOptions, sizes: list[int], form: str) -> Iterable[Row]:
    return rows


def _show(rows: Iterable[Row], options: BenchOptions, sizes: list[int], form: str) -> Iterable[Row]:
    """Prints each row as it comes, and hands it on."""
    table, shown = None, []
    for row in rows:
        if form == "json":
            for each in objects(row, options):
                click.echo(json.dumps(each))
        else:
            if table is None:
                table = (MarkdownTable if form else Table)(options, row, sizes)
                click.echo(table.head())
            click.echo(table.line(row))
        sys.stdout.flush()
        shown.append(row)
        yield row
    if table is not None:
        foot = table.foot(shown)
        click.echo(f"{foot}\n" * bool(foot), nl=False)
    if shown and not form:
        click.echo(f"{counted(row.ranks, 'rank')}, {row.mpi}; medians of the slowest rank; all results verified")
        if options.peers and options.device == "cpu" and GLOO not in row.seconds:
            click.echo("Gloo: PyTorch is not installed, or cannot do this")


COMMANDS = tuple(_command(collective) for collective in (ALLREDUCE, REDUCE_SCATTER, ALLGATHER, BCAST))
