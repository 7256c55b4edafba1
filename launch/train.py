"""`psgd train`: starts the ranks of a training run, or is one of them."""

import contextlib
import functools
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import click
from click.shell_completion import CompletionItem

from psgd.checkpoint import requests
from psgd.config import TrainConfig
from psgd.kernels.errors import AgreedError, OutputError, UsageError
from psgd.kernels.notice import say
from psgd.launch import options, ranks, startup
from psgd.launch.memory import refusal
from psgd.launch.output import exit_status, standard_streams, summary
from psgd.runtime import faults, launcher_env, new_files
from psgd.runtime.job_end import DIVERGED, LOST
from psgd.runtime.ulfm import switch
from psgd.runtime.ulfm.leave import leave
from psgd.runtime.ulfm.options import standing_by
from psgd.runtime.ulfm.tolerance import TOLERANCE
from psgd.strategies import catalog as strategies
from psgd.strategies import going_on, held_twice

WORKERS = 2
_OWN = (0, 1, 2, DIVERGED, LOST, requests.REQUEUE)
"""Exit codes of a run that has ended by itself; any other is of a rank that was lost."""
_ENDED = (128 + signal.SIGHUP, 128 + signal.SIGINT, 128 + signal.SIGTERM)


@click.command()
@click.option(
    "--config",
    metavar="FILE.toml",
    shell_complete=lambda ctx, param, incomplete: [CompletionItem(incomplete, type="file")],
    help="Read options from this file; flags take precedence.",
)
@options.train_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object at the end of stdout.")
@click.option("--mpiexec-args", default="", metavar="TEXT", help="More arguments for mpiexec, quoted as in a shell.")
@click.option("--try-anyway", is_flag=True, help="Start even what cannot fit into memory by its estimate.")
@click.option("--verbose", is_flag=True, help="Show how the ranks are started, and where each one runs.")
def train(config: str | None, as_json: bool, mpiexec_args: str, try_anyway: bool, verbose: bool, **flags: Any) -> int:
    """Train a model with distributed SGD.

    By itself, the command starts its own ranks: 1 server and 2 workers. Started by mpirun or srun, it is one rank
    of that job; rank 0 is server 0.
    """
    if ranks.place() is not None:
        return _be_rank(flags, config, as_json, verbose, try_anyway)
    chosen = options.build(flags, config)
    servers, workers = sizes(chosen)
    from psgd.launch import spawn

    spawn.split(mpiexec_args)
    total, asked = (servers + workers) * chosen.parts, f"--servers {servers} --workers {workers}"
    idle = standing_by(chosen.spares, chosen.grow, chosen.parts)
    most = max(64, 16 * (os.cpu_count() or 1))
    if total + idle > most:
        asked += f" --mesh {chosen.mesh}" if chosen.mesh else ""
        raise UsageError(
            f"{asked}: expected at most {most} ranks started on one machine of "
            f"{os.cpu_count()} cores; start more with mpirun or srun on several"
        )
    faults.check(chosen.inject, workers, servers)
    strategies.create(chosen.strategy, workers, **chosen.own)
    options.check_here(chosen)
    if not try_anyway:
        refusal.check(chosen, servers, workers, total, functools.partial(options.model_of, chosen))
    if chosen.checkpoint_dir is not None:
        if line := requests.ignored(chosen.save_signal):
            say(f"warning: {line}")
        if not (
            chosen.checkpoint_every or chosen.checkpoint_minutes or chosen.keep_best or chosen.resume or chosen.grow
        ):
            say(
                f"--checkpoint-dir alone saves only when asked ({requests.asked_by(chosen.save_signal)}); "
                "add --checkpoint-every or --checkpoint-minutes"
            )
    if servers + workers == 1:
        options.check_alone(chosen)
    if total + idle == 1:
        os.environ.setdefault("OMPI_MCA_btl", "^ofi")  # alone, no fabric is needed; looking for one takes 1 s
        return _run(replace(chosen, servers=0, workers=1), as_json, verbose)
    numbers = requests.heard(chosen.save_signal)
    bind = "cuda" not in (chosen.device, chosen.server_device)
    goes_on = _goes_on(chosen, bool(flags["survive"]), servers, workers)
    code = spawn.run(spawn.again(), total + idle, mpiexec_args, verbose, numbers, bind, goes_on or idle > 0)
    if code not in (0, LOST) and chosen.trace is not None:  # a run that went on without the dead has merged it itself
        _merge_trace(chosen.trace)
    lost = code not in _OWN and chosen.checkpoint_dir is not None
    if code in _ENDED or lost:
        if sys.stderr is not None and sys.stderr.isatty():
            with contextlib.suppress(OSError):  # the terminal has gone
                print(file=sys.stderr)  # ends the line of the bar, which the ranks have not
        say(_advice(chosen))
    return code


def _goes_on(config: TrainConfig, asked: bool, servers: int, workers: int) -> bool:
    """Whether the run goes on at a death, where the MPI does. Refuses options that need it, where it does not.

    Args:
        config: of the run.
        asked: `--survive` itself was given.
        servers: how many there are.
        workers: how many there are.
    """
    of_run = config.flat(), servers, workers
    goes_on = going_on.survives(*of_run)
    held_twice.check(*of_run)
    if config.drop_straggler_after is not None and not goes_on:
        raise UsageError(going_on.without(f"--drop-straggler-after {config.drop_straggler_after:g}", *of_run))
    if asked and not (goes_on and switch.built_in()):
        raise UsageError(going_on.without("--survive", *of_run) + (", got an MPI without ULFM" if goes_on else ""))
    return goes_on


def _merge_trace(path: Path) -> None:
    """Merges what the ranks have recorded, where the run was aborted before it did that itself."""
    from psgd.metrics.trace import chrome

    try:
        ranks = chrome.merge_parts(path)
    except (OSError, UsageError) as error:
        say(f"warning: trace {path}: what the ranks recorded stays beside it: {error}")
        return
    if ranks:
        say(f"the run was aborted: {path} has what {ranks} ranks had recorded until then")


def _advice(config: TrainConfig) -> str:
    from psgd.checkpoint import folder

    return folder.how_to_resume(config.checkpoint_dir)


def sizes(config: TrainConfig) -> tuple[int, int]:
    """Returns how many servers and workers this command starts by itself, each of them `config.parts` ranks."""
    served = strategies.find(config.strategy).servers
    servers = int(served) if config.servers is None else config.servers
    return servers, config.workers or (1 if config.mesh or (served and not servers) else WORKERS)


def fit(config: TrainConfig, size: int) -> TrainConfig:
    """Fills in servers and workers for a job of `size` ranks that was started by others.

    Raises:
        UsageError: the two do not add up to `size`.
    """
    if config.mesh is not None:
        size = _replicas(config, size)
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
    held_twice.check(config.flat(), servers, workers)
    return replace(config, servers=servers, workers=workers)


def _at_first(config: TrainConfig, size: int) -> int:
    """How many ranks of a job of `size` the run begins with: all but those that stand by."""
    return size - standing_by(config.spares, config.grow, config.parts)


def _replicas(config: TrainConfig, size: int) -> int:
    """How many copies of the model so many ranks hold, with servers.

    Raises:
        UsageError: the mesh needs another number of ranks.
    """
    parts, workers = config.parts, config.workers
    copies, rest = divmod(size, parts)
    servers = strategies.default_servers(config.strategy, copies) if config.servers is None else config.servers
    if rest or copies < 1 or (workers is not None and copies != workers + servers):
        if config.servers is None and workers is not None:
            servers = strategies.default_servers(config.strategy, workers + 1)
        least = parts * ((1 if workers is None else workers) + servers)
        wanted = f"a multiple of {parts}" if workers is None else str(least)
        also = f" --servers {servers}" if servers else ""
        raise UsageError(f"--mesh {config.mesh}{also}: expected {wanted} ranks, got {size}; start it with -n {least}")
    return copies


def _be_rank(flags: Mapping[str, object], config: str | None, as_json: bool, verbose: bool, anyway: bool) -> int:
    try:
        chosen: TrainConfig | UsageError = options.build(flags, config)
    except options.UnreadableError as error:
        # Perhaps on this host only: the others would wait in MPI_Init for ever if this rank left now.
        chosen = error
    if isinstance(chosen, TrainConfig) and not anyway and exit_status.VARIABLE not in os.environ:
        chosen = _fitting(chosen)
    return _run(chosen, as_json, verbose)


def _fitting(config: TrainConfig) -> TrainConfig | UsageError:
    """The run, or why it cannot fit into this node: its first rank looks, if the launcher tells it who that is."""
    size, (rank, here) = (ranks.place() or (0, None))[1], launcher_env.place_here() or (1, 1)
    if size is None or rank:
        return config
    try:
        fitted = fit(config, _at_first(config, size))
        build = functools.partial(options.model_of, config)
        refusal.check(fitted, fitted.servers or 0, fitted.workers or 1, here, build)
    except UsageError as error:
        return error
    return config


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
    if request.leads:
        exit_status.report_begun()
    from psgd.runtime.fail_together import guard

    told = comm.Get_rank() == 0 and exit_status.VARIABLE not in os.environ  # else psgd's launcher says it
    with guard(comm, functools.partial(_advice, config) if told and isinstance(config, TrainConfig) else None):
        from psgd.launch.output import logs
        from psgd.training import run
        from psgd.training.restart.attempts import attempts

        result, said = None, None
        try:
            for attempt in attempts(_agreed(config, comm), comm):
                chosen, team = attempt.config, attempt.comm
                request.leads = team.rank == 0
                request.begin(attempt.again)
                with logs.output(chosen.log_dir, team) as said, attempt:
                    note, progress = said.progress.note, said.progress
                    startup.announce(team, chosen.servers or 0, chosen.placement, verbose, note, chosen.axes)
                    if verbose and (why := _ends_at_a_death(chosen)):
                        note(f"this run does not go on without a worker that dies: {why}")
                    request.tell = note
                    result = run(chosen, team, progress, request)
                    if attempt.leaves(result, request.stops):
                        result = None
                    if result is not None and result.get("requeue") and result["checkpoint"]:
                        note(_stopped(result["checkpoint"]))
                    progress.close()
                    if result is not None:
                        said.result(json.dumps(result) if as_json else summary.text(result))
        except AgreedError as error:
            code = _refuse(error, TOLERANCE.living(comm).rank)
            leave(comm, code)
            return code
        complete = _wrote_all(comm, None if said is None else said.lost, result is not None)
        living = TOLERANCE.living(comm)
        code = _code(result, complete, died=living.size < comm.size)
        if living.rank == 0 and exit_status.report(code) and code != requests.REQUEUE:
            code = 0  # mpiexec would take another for a crash
    leave(comm, code)
    return code


def _ends_at_a_death(config: TrainConfig) -> str | None:
    """Why a run of several ranks does not go on without a dead worker, where this MPI can; else None."""
    servers, workers = config.servers or 0, config.workers or 1
    if servers + workers == 1 or not switch.built_in():
        return None
    why = going_on.obstacle(config.flat(), servers, workers)
    return why if why or switch.enabled() else "mpirun without --with-ft ulfm"


def _code(result: Mapping[str, object] | None, complete: bool, died: bool) -> int:
    """A rank's exit code.

    Args:
        result: of the run; None where another rank has it.
        complete: all that the run had to write could be written.
        died: a rank is dead by now.
    """
    found = result or {}
    if found.get("requeue"):
        return requests.REQUEUE
    if found.get("diverged"):
        return DIVERGED
    if not complete:
        return 1
    return LOST if found.get("lost_ranks") or (found and died) else 0


def _wrote_all(comm: Any, error: OutputError | None, has_result: bool) -> bool:
    """Whether all that the run had to write could be written; else rank 0 says what could not. Collective.

    Args:
        comm: all ranks; those that live see to it.
        error: of the result, on the rank that has it.
        has_result: that is this one.

    Returns:
        On the first rank that lives whether that is so; True elsewhere.
    """
    from psgd.runtime.agreement import gather

    mine = {"lost": new_files.lost(), "has_result": has_result}
    everyone = TOLERANCE.together(comm, lambda living: gather(living, mine))
    lost = dict.fromkeys(name for each in everyone for name in each["lost"])
    if TOLERANCE.living(comm).rank != 0:
        return True
    told = any(each["has_result"] for each in everyone)
    if not told:
        say("error: the run is complete, but the rank that had its result died, perhaps before it was printed")
    if lost:
        say(f"error: the run is complete, but could not write all of {', '.join(lost)}")
    if error is not None:
        standard_streams.give_up(error)
    return told and not lost and error is None


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
        size = _at_first(config, comm.size)
        if size < comm.size and not switch.enabled():
            raise UsageError(
                "--spares, --grow: expected Open MPI 5 and ranks that survive deaths: start psgd train by itself, or "
                "with mpirun --with-ft ulfm"
            )
        config = fit(config, size)
        placement.checked(config.placement, config.servers or 0, size // config.parts)
        if comm.rank == 0:
            options.check_files(config)
        if config.log_dir is not None and (cannot := logs.prepare(config.log_dir)):
            raise UsageError(cannot)
    except UsageError as error:
        complaint = str(error)
    values = {} if isinstance(config, UsageError) or complaint is not None else config.flat()
    agree(comm, "", {name: str(value) for name, value in values.items()}, complaint)
    assert isinstance(config, TrainConfig)
    if "cuda" in (config.device, config.server_device):
        from psgd.backend import places

        first = [] if config.mesh else placement.agree(comm, config.servers or 0, config.placement)
        serves = comm.rank in first
        places.check(comm, (config.server_device if serves else config.device) == "cuda")
    return config


def _refuse(error: AgreedError, rank: int) -> int:
    """All ranks have the same error and end by themselves: rank 0 speaks, and its exit code is the job's."""
    if rank != 0:
        return 0
    say(f"error: {' '.join(str(error).split())}")
    return 0 if exit_status.report(2) else 2
