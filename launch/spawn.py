"""Starts the ranks of a job by running the same command again under mpiexec, and reports how the job ended."""

import contextlib
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from psgd.kernels.errors import UsageError
from psgd.kernels.notice import say
from psgd.launch import cores, mpiexec, node_memory, supervise, threads
from psgd.launch.output import exit_status, merged, terminal
from psgd.launch.signal_forwarding import Forwarding
from psgd.runtime.job_end import LOST
from psgd.runtime.ulfm import switch

_OURS = (*threads.VARIABLES, exit_status.VARIABLE, terminal.VARIABLE, merged.VARIABLE)


def again(argv: Sequence[str] | None = None) -> list[str]:
    """Returns the command that runs this `psgd` command once more: its script, or `python -m psgd.launch`."""
    argv = sys.argv if argv is None else argv
    if Path(argv[0]).name == "psgd" and Path(argv[0]).is_file():
        return [sys.executable, str(Path(argv[0]).resolve()), *argv[1:]]
    return [sys.executable, "-m", "psgd.launch", *argv[1:]]


def split(mpiexec_args: str) -> list[str]:
    """Splits the text of `--mpiexec-args` as a shell would.

    Raises:
        UsageError: a quote is not closed.
    """
    try:
        return shlex.split(mpiexec_args)
    except ValueError as error:
        raise UsageError(f"--mpiexec-args: {error} in {mpiexec_args!r}") from None


def run(
    program: Sequence[str],
    ranks: int,
    mpiexec_args: str = "",
    verbose: bool = False,
    forward: Sequence[int] = (),
    bind: bool = True,
    survives: bool = False,
) -> int:
    """Runs `program` on `ranks` ranks and waits for the job's end. Blocks.

    The job must end with `exit_status.report` on rank 0. SIGINT, SIGTERM and SIGHUP end all of it within a few
    seconds; no process is left behind. SIGTSTP, as by Ctrl-Z, stops the ranks too until SIGCONT. A signal that is
    ignored stays so.

    Args:
        program: what each rank runs.
        ranks: how many.
        mpiexec_args: further arguments for mpiexec, as in a shell.
        verbose: print the command to stderr.
        forward: signals to forward to the ranks.
        bind: each rank to a core that no other job has, where there are enough. Not for GPUs: CUDA's and MPI's threads
            would share it.
        survives: the run goes on without ranks that die, where this MPI can. Then rank 0 calls
            `exit_status.report_begun` once MPI has started: a death before that ends the job.

    Returns:
        The exit code for this process: the one that the run reported; mpiexec's where it failed; 1 where
        mpiexec returned 0 and the run reported nothing; 128 + the signal's number after a signal.

    Raises:
        UsageError: no mpiexec, or not the one of mpi4py's MPI.
    """
    extra = split(mpiexec_args)
    found = mpiexec.library()
    program_of_mpi = mpiexec.find(found)
    local = mpiexec.one_host(os.environ, extra)
    here = len(cores.usable())
    env = node_memory.settings(found.vendor) | os.environ
    threads.limit(env)
    for name in (terminal.VARIABLE, merged.VARIABLE, cores.VARIABLE):
        env.pop(name, None)
    if merged.find():
        env[merged.VARIABLE] = "1"
    if shown := terminal.name():
        env[terminal.VARIABLE] = shown
    if found.vendor == mpiexec.INTEL and not mpiexec.places(extra):
        env.setdefault("I_MPI_PIN", "0")  # its own way of giving each job the same cores
    bind = bind and local and not mpiexec.places(extra)
    with (
        _temporary_folder(local) as folder,
        cores.reserved(ranks) if bind else contextlib.nullcontext() as ours,
    ):
        if ours:
            env[cores.VARIABLE] = cores.text(ours)
        elif bind and ranks <= here:
            say(f"ranks are not bound to cores: other jobs use some of the {here} cores here")
        result = _report_in(Path(folder))
        env[exit_status.VARIABLE] = str(result)
        words = mpiexec.command(
            found.vendor,
            program_of_mpi,
            ranks,
            here,
            os.geteuid() == 0,
            local=local,
            exports=[] if local else [n for n in _OURS if n in env],
            extra=extra,
            slurm="SLURM_JOB_ID" in os.environ,
        )
        words += program
        survives = survives and found.vendor == mpiexec.OPEN_MPI and switch.built_in()
        if survives and "--with-ft" not in extra:
            words[1:1] = switch.ARGUMENTS
        if verbose:
            say(shlex.join(words))
        first = supervise.FirstEnded(ranks)
        start = supervise.StartWatch(ranks, lambda: exit_status.has_begun(result))
        look = None
        if local:
            look = start.look if survives else first.look if found.vendor != mpiexec.OPEN_MPI else None
        before = node_memory.files()
        try:
            code, caught = supervise.run(words, env, Forwarding(program, ranks, local), forward, look, survives)
        finally:
            node_memory.remove_leftovers(before)
        if code > LOST and not caught and exit_status.read(result) is None and first.ranks:
            say(f"error: rank {first.names} was the first to end, and ended the job")
        if start.ranks and not caught:
            say(f"error: rank {', '.join(map(str, start.ranks))} ended before the run had begun")
            return 1
        return 128 + caught if caught else _judge(code, exit_status.read(result))


def _judge(code: int, reported: int | None) -> int:
    if code != 0:
        return reported or code
    if reported is None:
        say("error: mpiexec returned 0 but the run did not complete")
        return 1
    return reported


def _report_in(folder: Path) -> Path:
    """The file for the report of the run's end, made now with room for it."""
    path = folder / "outcome"
    try:
        exit_status.prepare(path)
    except OSError as error:
        raise UsageError(
            f"{folder}: expected space for the report of the run's end: {error.strerror}; free some space"
        ) from None
    return path


def _temporary_folder(local: bool) -> "tempfile.TemporaryDirectory[str]":
    """A folder for the report of the run's end; across hosts in the working folder, which they tend to share."""
    try:
        here = os.getcwd() if not local and os.access(os.getcwd(), os.W_OK) else None
        return tempfile.TemporaryDirectory(prefix=".psgd-", dir=here)
    except OSError as error:
        raise UsageError(
            f"TMPDIR: expected a folder that can be written, for the report of the run's end: {error}"
        ) from None
