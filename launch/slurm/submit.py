"""Hands a batch script to sbatch, and follows the job until it has ended."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

from psgd.kernels.errors import UsageError
from psgd.kernels.notice import say

ENDED = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")
POLL_S = 1.0
LONGEST_POLL_S = 15.0  # the controller answers all of a cluster's users


def plugin() -> str:
    """Returns the plugin for srun that fits mpi4py's MPI, which it loads without starting it."""
    from psgd.launch import mpiexec

    return "pmix" if mpiexec.library().vendor == mpiexec.OPEN_MPI else "pmi2"


def submit(text: str) -> str:
    """Submits a script and returns the job's number.

    Raises:
        UsageError: there is no sbatch, or it refuses; in its own words, the line that says most.
    """
    if shutil.which("sbatch") is None:
        raise UsageError("sbatch: not found on PATH; submit from a login node of a cluster with SLURM")
    done = subprocess.run(["sbatch", "--parsable"], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"sbatch: {_reason(done.stderr) or f'exit code {done.returncode}'}")
    return done.stdout.strip().partition(";")[0]


def _reason(said: str) -> str:
    """The line that says why: the fatal one, or the first error; the others follow from it or lead to it."""
    lines = [line.strip().removeprefix("sbatch: ") for line in said.splitlines() if any(map(str.isalpha, line))]
    for start in ("fatal: ", "error: "):
        for line in lines:
            if line.startswith(start) and any(map(str.isalpha, line[len(start) :])):
                return line[len(start) :]
    return lines[0] if lines else ""


def follow(number: str) -> int:
    """Copies a job's log to stdout as it grows, until the job has ended. Blocks; Ctrl-C leaves the job running.

    Returns:
        The job's exit code; 1 where it ended without one of its own (cancelled, out of time); 128 + a signal.
    """
    start = time.monotonic()
    printed, state = 0, ""
    while True:
        job = show(number)
        if state != (state := job.get("JobState", "NOT KNOWN")):
            say(f"job {number}: {state.lower()}")
        printed += _copy(job.get("StdOut"), printed)
        if state in ENDED or not job:
            code, _, caught = job.get("ExitCode", "1:0").partition(":")
            return 128 + int(caught) if int(caught or 0) else int(code) or (0 if state == "COMPLETED" else 1)
        time.sleep(min(LONGEST_POLL_S, max(POLL_S, (time.monotonic() - start) / 20)))


def show(number: str) -> dict[str, str]:
    """Returns what `scontrol show job` says of a job, empty where it is not known (any more)."""
    words = ["scontrol", "show", "job", "--oneliner", number]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return dict(word.partition("=")[::2] for word in done.stdout.split() if "=" in word)


def _copy(path: str | None, start: int) -> int:
    """Writes what a file has from a byte on to stdout; returns how much that was."""
    if path is None or not Path(path).is_file():
        return 0
    with Path(path).open("rb") as file:
        file.seek(start)
        more = file.read()
    sys.stdout.buffer.write(more)
    sys.stdout.flush()
    return len(more)
