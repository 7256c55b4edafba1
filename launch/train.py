"""`psgd train`: starts the ranks of a training run, or is one of them."""

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from psgd import stragglers
from psgd.config import SERVERLESS, TrainConfig
from psgd.kernels.errors import AgreedError, UsageError
from psgd.launch import options, outcome, ranks, summary

if TYPE_CHECKING:
    from mpi4py import MPI

WORKERS = 2


@click.command()
@click.option("--config", metavar="FILE.toml", help="Read options from this file; flags win over it.")
@options.train_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object, last on stdout.")
@click.option("--mpiexec-args", default="", metavar="TEXT", help="More arguments for mpiexec, as in a shell.")
@click.option("--verbose", is_flag=True, help="Show how the ranks are started.")
def train(config: str | None, as_json: bool, mpiexec_args: str, verbose: bool, **flags: Any) -> int:
    """Train a model with a parameter server.

    Alone, the command starts its own ranks: 1 server and 2 workers. Started by mpirun or srun, it is one rank
    of that job, server 0 being rank 0.
    """
    place = ranks.place()
    if place is not None:
        return _be_rank(flags, config, as_json, place[1])
    chosen = options.build(flags, config)
    servers, workers = sizes(chosen)
    from psgd.launch import spawn

    spawn.split(mpiexec_args)
    most = max(64, 16 * (os.cpu_count() or 1))
    if servers + workers > most:
        raise UsageError(
            f"--servers {servers} --workers {workers}: expected at most {most} ranks started on one machine of "
            f"{os.cpu_count()} cores; start more with mpirun or srun on several"
        )
    stragglers.check(chosen.inject, range(workers))
    options.check_here(chosen)
    if servers + workers == 1:
        os.environ.setdefault("OMPI_MCA_btl", "^ofi")  # alone, no fabric is needed; looking for one takes 1 s
        return _run(replace(chosen, servers=0, workers=1), as_json, None)
    return spawn.run(spawn.again(), servers + workers, mpiexec_args, verbose)


def sizes(config: TrainConfig) -> tuple[int, int]:
    """Returns how many servers and workers this command starts by itself."""
    if config.strategy in SERVERLESS:
        return 0, config.workers or WORKERS
    servers = 1 if config.servers is None else config.servers
    return servers, config.workers or (WORKERS if servers else 1)


def fit(config: TrainConfig, size: int) -> TrainConfig:
    """Fills in servers and workers for a job of `size` ranks that was started by others.

    Raises:
        UsageError: the two do not add up to `size`.
    """
    peers = config.strategy in SERVERLESS
    servers = (1 if size > 1 and not peers else 0) if config.servers is None else config.servers
    workers = size - servers if config.workers is None else config.workers
    if workers < 1:
        raise UsageError(f"--servers {servers}: a job of {size} ranks leaves no worker; start more")
    if servers == 0 and workers > 1 and not peers:
        raise UsageError(f"--servers 0: expected a job of 1 rank with it, got {size} ranks")
    if servers + workers != size:
        raise UsageError(
            f"--workers {workers} --servers {servers}: expected {workers + servers} ranks, got {size}; "
            f"start it with -n {workers + servers}, or leave --workers away"
        )
    stragglers.check(config.inject, range(workers))
    return replace(config, servers=servers, workers=workers)


def _be_rank(flags: Mapping[str, object], config: str | None, as_json: bool, size: int | None) -> int:
    try:
        chosen: TrainConfig | UsageError = options.build(flags, config)
    except options.UnreadableError as error:
        # Perhaps on this host only: the others would wait in MPI_Init for ever if this rank left now.
        chosen = error
    if size is not None and isinstance(chosen, TrainConfig):
        chosen = fit(chosen, size)
    return _run(chosen, as_json, size)


def _run(config: TrainConfig | UsageError, as_json: bool, told: int | None) -> int:
    """One rank's whole part. Starts MPI; the job ends together, whatever happens on one rank.

    Args:
        config: the run, or why this rank has none.
        as_json: how rank 0 prints the result.
        told: the number of ranks that the launcher's environment names, if it does.
    """
    comm = _start(told)
    from psgd.ending import guard

    with guard(comm):
        from psgd.launch.progress import Progress
        from psgd.training import run

        try:
            chosen = _agreed(config, comm)
            progress = Progress(shown=comm.rank == 0)
            with contextlib.closing(progress):
                result = run(chosen, comm, on_progress=progress)
        except AgreedError as error:
            return _refuse(error)
        if comm.rank == 0:
            assert result is not None
            print(json.dumps(result) if as_json else summary.text(result))
            sys.stdout.flush()
            outcome.report(0)
    return 0


def _agreed(config: TrainConfig | UsageError, comm: Any) -> TrainConfig:
    """The options, once all ranks have the same and none has found a fault in them. Collective."""
    from psgd.agreement import agree

    complaint = None
    try:
        if isinstance(config, UsageError):
            raise config
        config = fit(config, comm.size)
        if comm.rank == 0:
            options.check_files(config)
    except UsageError as error:
        complaint = str(error)
    signature = {name: str(value) for name, value in vars(config).items()} if complaint is None else {}
    agree(comm, "", signature, complaint)
    assert isinstance(config, TrainConfig)
    return config


def _refuse(error: AgreedError) -> int:
    """All ranks have the same error and end by themselves: rank 0 speaks, and its exit code is the job's."""
    if not ranks.speaks():
        return 0
    print(f"psgd: error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
    return 0 if outcome.report(2) else 2


def _start(told: int | None) -> "MPI.Intracomm":
    """Starts MPI, and refuses a job whose ranks do not see each other."""
    import mpi4py

    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
    from mpi4py import MPI

    several = told is not None and told > 1
    # Under another MPI's mpiexec each rank is alone; MPICH's under Open MPI's cannot even start.
    foreign = several and "OMPI_COMM_WORLD_RANK" in os.environ and MPI.get_vendor()[0] != "Open MPI"
    if not foreign and not MPI.Is_initialized():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # mpi4py's word on the same thing, once a rank
            MPI.Init_thread(MPI.THREAD_MULTIPLE)
    if foreign or (several and MPI.COMM_WORLD.size == 1):
        raise UsageError(_alone(told or 0, MPI.get_vendor()))
    return MPI.COMM_WORLD


def _alone(told: int, vendor: tuple[str, tuple[int, ...]]) -> str:
    name = f"{vendor[0]} {'.'.join(map(str, vendor[1]))}"
    slurm = "pmix" if vendor[0] == "Open MPI" else "pmi2"
    return (
        f"the environment says {told} ranks, but each would train alone: they were not started by the "
        f"mpiexec of mpi4py's MPI, {name}; run plain `psgd train`, which finds that one, or under SLURM "
        f"srun --mpi={slurm}"
    )
