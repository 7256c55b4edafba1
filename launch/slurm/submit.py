"""Hands a batch script to sbatch, and follows the job until it has ended."""

import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from psgd.kernels.errors import UsageError
from psgd.kernels.notice import say
from psgd.launch.slurm import job_states, queries
from psgd.launch.slurm.queries import Job, Record

POLL_S = 1.0
LONGEST_POLL = 15  # times POLL_S: the controller answers all of a cluster's users
PATIENCE = 12  # queries without an answer, some two minutes: long enough for a controller to be restarted
PATIENCE_UNKNOWN = 4  # where the controller answers that there is no such job
BUSY = 3  # so many unanswered queries before the accounting database is asked, which is behind the controller


def plugin() -> str:
    """Returns the plugin for srun that fits mpi4py's MPI, which it loads without starting it."""
    from psgd.launch import mpiexec

    return "pmix" if mpiexec.library().vendor == mpiexec.OPEN_MPI else "pmi2"


def submit(text: str) -> Job:
    """Submits a script and returns the job.

    Raises:
        UsageError: there is no sbatch, or it refuses; in its own words, the line that says most. Or it names no job.
    """
    if shutil.which("sbatch") is None:
        raise UsageError("sbatch: not found on PATH; submit from a login node of a cluster with SLURM")
    script = text.encode(errors="surrogateescape")
    try:
        done = subprocess.run(["sbatch", "--parsable"], input=script, capture_output=True, check=False)
    except OSError as error:
        raise UsageError(f"sbatch: {shutil.which('sbatch')} cannot be run: {error.strerror}") from None
    said = done.stderr.decode(errors="replace")
    job = queries.submitted(done.stdout.decode(errors="replace"))
    if job is not None:  # whatever the exit code: with --sbatch=--wait it is the job's
        return job
    reason = _reason(said)
    if done.returncode:
        # After a timeout the controller may have taken the job all the same.
        hint = "; `squeue --me` shows whether the job was queued anyway" if "timed out" in said.lower() else ""
        raise UsageError(f"sbatch: {reason or _ending(done.returncode)}{hint}")
    got = reason or _first_line(done.stdout.decode(errors="replace")) or "nothing"
    raise UsageError(f"sbatch: expected the job's number, got {got}; `squeue --me` shows whether a job was queued")


def _ending(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"ended by signal {-code}"


def _first_line(said: str) -> str:
    return next((repr(line.strip()) for line in said.splitlines() if line.strip()), "")


def _reason(said: str) -> str:
    """The line that says why: the fatal one, or the first error; the others follow from it or lead to it."""
    lines = [line.strip().removeprefix("sbatch: ") for line in said.splitlines() if any(map(str.isalpha, line))]
    for start in ("fatal: ", "error: "):
        for line in lines:
            if line.startswith(start) and any(map(str.isalpha, line[len(start) :])):
                return line[len(start) :]
    return lines[0] if lines else ""


def follow(job: Job) -> int:
    """Copies a job's log to stdout as it grows, until the job has ended. Blocks; Ctrl-C leaves the job running.

    Returns:
        The job's exit code; 1 where it ended without one of its own (cancelled, out of time), or where its end is not
        known; 128 + a signal.
    """
    start = time.monotonic()
    printed, unanswered, known = 0, 0, Record()
    while True:
        record = _look(job, unanswered)
        unanswered = 0 if record.state else unanswered + 1
        if record.state:
            if record.state != known.state:
                _tell(job, record.state.lower() + _hint(job, record))
            known = record._replace(log=record.log or known.log)
        elif unanswered == BUSY:
            _tell(job, f"no answer ({record.problem}), asking again")
        printed += _copy(known.log, printed)
        if queries.ended(record):
            return _exit_code(record)
        if unanswered >= (PATIENCE_UNKNOWN if record.unknown else PATIENCE):
            where = f"; its log is {known.log}" if known.log else ""
            _tell(job, f"not known ({record.problem}). `squeue --me` shows whether it is still there{where}")
            return 1
        pause = POLL_S * 2 ** (unanswered - 1) if unanswered else (time.monotonic() - start) / 20
        time.sleep(min(POLL_S * LONGEST_POLL, max(POLL_S, pause)))


def _look(job: Job, unanswered: int) -> Record:
    """Asks the controller; the accounting database too where that does not know the job, or has been silent for long.

    The database alone does not make a job run: it may show the turn before a requeue. Its word counts for ends only.
    """
    record = queries.show(job)
    if not record.state and (record.unknown or unanswered + 1 >= BUSY):
        final = queries.account(job)
        if queries.ended(final):
            return final
    return record


def _hint(job: Job, record: Record) -> str:
    states = job_states.read(record.state)
    if job_states.held(states):
        return f" (held: `scontrol release {job.number}` lets it run)"
    return " (it runs on another cluster)" if "REVOKED" in states else ""


def _exit_code(record: Record) -> int:
    code, _, caught = (part if part.isdecimal() else "0" for part in record.exit_code.partition(":"))
    if int(caught):
        return min(128 + int(caught), 255)
    return int(code) & 0xFF or (0 if "COMPLETED" in job_states.read(record.state) else 1)


def _tell(job: Job, text: str) -> None:
    say(f"job {job.number}: {text}")


def _copy(path: str, start: int) -> int:
    """Writes what a file has from a byte on to stdout; returns how much that was."""
    more = b""
    with suppress(OSError):  # a file system that is away for a moment; the next look finds it
        if path and Path(path).is_file():
            with Path(path).open("rb") as file:
                file.seek(start)
                more = file.read()
    sys.stdout.buffer.write(more)
    sys.stdout.flush()
    return len(more)
