"""Starts the ranks of a job by running the same command again under mpiexec, and reports how the job ended."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from psgd.kernels.errors import UsageError
from psgd.kernels.notice import say
from psgd.launch import exit_status, mpiexec, signal_forwarding, threads
from psgd.launch.output import terminal
from psgd.launch.output.relay import Relays
from psgd.launch.signal_forwarding import descendants

GRACE_S = 3.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OURS = (*threads.VARIABLES, exit_status.VARIABLE, terminal.VARIABLE)


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
) -> int:
    """Runs `program` on `ranks` ranks and waits for the job's end. Blocks.

    The job must end with `exit_status.report` on rank 0. SIGINT, SIGTERM and SIGHUP end all of it within a few
    seconds; no process is left behind.

    Args:
        program: what each rank runs.
        ranks: how many.
        mpiexec_args: further arguments for mpiexec, as in a shell.
        verbose: print the command to stderr.
        forward: signals to forward to the ranks.
        bind: each rank to a core, where there are enough. Not for GPUs: CUDA's and MPI's threads would share it.

    Returns:
        The exit code for this process: the one that the run reported; mpiexec's where it failed; 1 where
        mpiexec returned 0 and the run reported nothing; 128 + the signal's number after a signal.

    Raises:
        UsageError: no mpiexec, or not the one of mpi4py's MPI.
    """
    extra = split(mpiexec_args)
    found = mpiexec.library()
    local = mpiexec.one_host(os.environ, os.environ.get("SLURM_JOB_NUM_NODES", "1"), extra)
    cores, whole = mpiexec.usable_cores()
    env = dict(os.environ)
    threads.limit(env)
    env.pop(terminal.VARIABLE, None)
    name = terminal.name()
    if name:
        env[terminal.VARIABLE] = name
    with contextlib.ExitStack() as stack:
        try:
            made = tempfile.TemporaryDirectory(prefix=".psgd-", dir=None if local else _shared_folder())
            result = Path(stack.enter_context(made)) / "outcome"
            exit_status.prepare(result)
        except OSError as error:
            where = "TMPDIR" if local else "the working folder"
            raise UsageError(f"{where}: no file can be made there: {error.strerror or error}") from None
        env[exit_status.VARIABLE] = str(result)
        words = mpiexec.command(
            found.vendor,
            mpiexec.find(found),
            ranks,
            cores,
            os.geteuid() == 0,
            local=local,
            bind=bind and whole,
            exports=[] if local else [n for n in _OURS if n in env],
            extra=extra,
            slurm="SLURM_JOB_ID" in os.environ,
        )
        words += program
        if verbose:
            say(shlex.join(words))
        forwarding = signal_forwarding.Forwarding(program, ranks, local)
        code, caught = _watch(words, env, forwarding, forward)
        return 128 + caught if caught else _judge(code, exit_status.read(result))


def _judge(code: int, reported: int | None) -> int:
    if code != 0:
        return reported or code
    if reported is None:
        say("error: mpiexec returned 0 but the run did not complete")
        return 1
    return reported


def _shared_folder() -> str | None:
    """The working folder, which hosts tend to share, unlike /tmp; None where it is read-only."""
    return os.getcwd() if os.access(os.getcwd(), os.W_OK) else None


def _watch(
    words: Sequence[str], env: dict[str, str], forwarding: signal_forwarding.Forwarding, forward: Sequence[int]
) -> tuple[int, int]:
    """Runs mpiexec to its end; returns its exit code, and the signal that ended it, or 0.

    It gets a session of its own: a terminal's Ctrl-C reaches this process only, which forwards it.
    """
    caught: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)

    def forward_signal(number: int, frame: FrameType | None) -> None:
        forwarding.wanted(number)

    handlers: dict[int, Callable[[int, FrameType | None], None]] = dict.fromkeys(_SIGNALS, note)
    handlers |= dict.fromkeys(forward, forward_signal)
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        relays = Relays()
        process = subprocess.Popen(
            words,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=relays.ends[0],
            stderr=relays.ends[1],
            start_new_session=True,
            preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 -- no threads here
        )
        relays.start()
        try:
            while not caught:
                with contextlib.suppress(subprocess.TimeoutExpired):  # a signal alone would not end the wait
                    code = process.wait(timeout=0.2)
                    return relays.finish(code if code >= 0 else 128 - code), 0
                forwarding.look(process.pid)
            _end(process, caught)
            return 0, caught[0]
        finally:
            if process.poll() is None:
                _kill(process)
            relays.finish(0, waits=False)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _die_with(parent: int) -> Callable[[], None] | None:
    """Makes what Popen calls in the child: SIGTERM for mpiexec should its launcher be killed outright."""
    if sys.platform != "linux":
        return None
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    pr_set_pdeathsig = 1

    def ask() -> None:
        prctl(pr_set_pdeathsig, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def _end(process: "subprocess.Popen[bytes]", caught: list[int]) -> None:
    """Lets mpiexec end its ranks; kills all after `GRACE_S`, or at the second signal."""
    process.terminate()
    limit = time.monotonic() + GRACE_S
    while process.poll() is None and time.monotonic() < limit and len(caught) == 1:
        time.sleep(0.02)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kills mpiexec and all below it, found before it dies: ranks may lead sessions of their own."""
    below = descendants(process.pid)
    for pid in [process.pid, *below]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
