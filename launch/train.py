"""`psgd train`: starts the ranks of a training run, or is one of them."""

import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import click

from psgd.checkpoint import requests
from psgd.config import TrainConfig
from psgd.kernels.errors import AgreedError, UsageError
from psgd.launch import exit_status, options, ranks, startup
from psgd.launch.output import summary
from psgd.runtime import faults
from psgd.strategies import catalog as strategies

WORKERS = 2


@click.command()
@click.option("--config", metavar="FILE.toml", help="Read options from this file; flags win over it.")
@options.train_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object, last on stdout.")
@click.option("--mpiexec-args", default="", metavar="TEXT", help="More arguments for mpiexec, as in a shell.")
@click.option("--verbose", is_flag=True, help="Show how the ranks are started, and where each is.")
def train(config: str | None, as_json: bool, mpiexec_args: str, verbose: bool, **flags: Any) -> int:
    """Train a model with distributed SGD.

    Alone, the command starts its own ranks: 1 server and 2 workers. Started by mpirun or srun, it is one rank
    of that job, server 0 being rank 0.
    """
    if ranks.place() is not None:
        return _be_rank(flags, config, as_json, verbose)
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
    faults.check(chosen.inject, workers, servers)
    options.check_here(chosen)
    if servers + workers == 1:
        options.check_alone(chosen)
        os.environ.setdefault("OMPI_MCA_btl", "^ofi")  # alone, no fabric is needed; looking for one takes 1 s
        return _run(replace(chosen, servers=0, workers=1), as_json, verbose)
    forward = [signal.SIGUSR1, requests.known(chosen.save_signal)]
    numbers = [s for s in forward if s is not None]
    bind = "cuda" not in (chosen.device, chosen.server_device)
    return spawn.run(spawn.again(), servers + workers, mpiexec_args, verbose, numbers, bind)


def sizes(config: TrainConfig) -> tuple[int, int]:
    """Returns how many servers and workers this command starts by itself."""
    served = strategies.find(config.strategy).servers
    servers = int(served) if config.servers is None else config.servers
    return servers, config.workers or (1 if served and not servers else WORKERS)


def fit(config: TrainConfig, size: int) -> TrainConfig:
    """Fills in servers and workers for a job of `size` ranks that was started by others.

    Raises:
        UsageError: the two do not add up to `size`.
    """
    served = strategies.find(config.strategy).servers
    servers = strategies.default_servers(config.strategy, size) if config.servers is None else config.servers
    workers = size - servers if config.workers is None else config.workers
    if workers < 1:
        raise UsageError(f"--servers {servers}: a job of {size} ranks leaves no worker; start more")
    if servers == 0 and workers > 1 and served:
        raise UsageError(f"--servers 0: expected a job of 1 rank with it, got {size} ranks")
    if servers + workers != size:
        raise UsageError(
            f"--workers {workers} --servers {servers}: expected {workers + servers} ranks, got {size}; "
            f"start it with -n {workers + servers}, or omit --workers"
        )
    if size == 1:
        options.check_alone(config)
    faults.check(config.inject, workers, servers)
    return replace(config, servers=servers, workers=workers)


def _be_rank(flags: Mapping[str, object], config: str | None, as_json: bool, verbose: bool) -> int:
    try:
        chosen: TrainConfig | UsageError = options.build(flags, config)
    except options.UnreadableError as error:
        # Perhaps on this host only: the others would wait in MPI_Init for ever if this rank left now.
        chosen = error
    return _run(chosen, as_json, verbose)


def _run(config: TrainConfig | UsageError, as_json: bool, verbose: bool) -> int:
    """One rank's whole part. Starts MPI; the job ends together, whatever happens on one rank.

    Args:
        config: the run, or why this rank has none.
        as_json: how rank 0 prints the result.
        verbose: rank 0 prints who is where.
    """
    request = requests.CheckpointRequest()
    if isinstance(config, TrainConfig):
        request = requests.CheckpointRequest(config.checkpoint_minutes)
        requests.listen(request, config.save_signal, saves=config.checkpoint_dir is not None)
    comm = startup.start()
    request.leads = comm.Get_rank() == 0
    from psgd.runtime.fail_together import guard

    with guard(comm):
        from psgd.launch.output import logs
        from psgd.runtime.job_end import DIVERGED
        from psgd.training import run

        try:
            chosen = _agreed(config, comm)
            with logs.output(chosen.log_dir, comm) as said:
                startup.announce(comm, chosen.servers or 0, chosen.placement, verbose, said.progress.note)
                request.tell = said.progress.note
                result = run(chosen, comm, said.progress, request)
                if result is not None and result.get("requeue") and result["checkpoint"]:
                    said.progress.note(_stopped(result["checkpoint"]))
                said.progress.close()
                if result is not None:
                    said.result(json.dumps(result) if as_json else summary.text(result))
        except AgreedError as error:
            return _refuse(error, comm.rank)
        code = 0
        if result is not None:
            code = requests.REQUEUE if result.get("requeue") else DIVERGED if result.get("diverged") else 0
        if comm.rank == 0:
            exit_status.report(code)
    return code


def _stopped(path: str) -> str:
    step = int(PurePath(path).name.rpartition("-")[2])
    return f"saved at step {step:,} in {path} and stopped; continue with --resume"


def _agreed(config: TrainConfig | UsageError, comm: Any) -> TrainConfig:
    """The options, once all ranks have the same and none has found a fault in them. Collective."""
    from psgd.launch.output import logs
    from psgd.runtime import placement
    from psgd.runtime.agreement import agree

    complaint = None
    try:
        if isinstance(config, UsageError):
            raise config
        config = fit(config, comm.size)
        placement.checked(config.placement, config.servers or 0, comm.size)
        if comm.rank == 0:
            options.check_files(config)
        if config.log_dir is not None and (cannot := logs.prepare(config.log_dir)):
            raise UsageError(cannot)
    except UsageError as error:
        complaint = str(error)
    values = {} if isinstance(config, UsageError) or complaint is not None else config.flat()
    agree(comm, "", {name: str(value) for name, value in values.items()}, complaint)
    assert isinstance(config, TrainConfig)
    return config


def _refuse(error: AgreedError, rank: int) -> int:
    """All ranks have the same error and end by themselves: rank 0 speaks, and its exit code is the job's."""
    if rank != 0:
        return 0
    print(f"psgd: error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
    return 0 if exit_status.report(2) else 2
