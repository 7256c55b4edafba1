"""What SLURM's programs say of a job: sbatch's answer, scontrol's and sacct's records."""

import re
import subprocess
from typing import NamedTuple

from psgd.launch.slurm import job_states

TIMEOUT_S = 60.0  # scontrol waits for a busy controller, for longer than one wants to know
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9])")
_ANSWERS = (
    re.compile(r"(?:sbatch: )?Submitted batch job (?P<number>[1-9]\d*)(?: on cluster (?P<cluster>[\w.-]+))?"),
    re.compile(r"(?P<number>[1-9]\d*);(?P<cluster>[\w.-]+)"),
    re.compile(r"(?P<number>[1-9]\d*)(?P<cluster>)"),
)
# The fields that may contain blanks. Each has a line of its own.
_PATH = re.compile(r"\s*(Command|WorkDir|StdErr|StdIn|StdOut)=(.*)")
_UNKNOWN = "Invalid job id"


class Job(NamedTuple):
    """A job that was submitted; `cluster` is empty where there is only one."""

    number: str
    cluster: str = ""

    def on_cluster(self) -> list[str]:
        """The option that asks its cluster."""
        return ["-M", self.cluster] if self.cluster else []


class Record(NamedTuple):
    """What is known of a job.

    Attributes:
        state: as SLURM wrote it; empty: there was no answer.
        exit_code: `code:signal`.
        log: the file of the job's output.
        problem: why there was no answer.
        unknown: the controller answered that it does not know the job.
    """

    state: str = ""
    exit_code: str = ""
    log: str = ""
    problem: str = ""
    unknown: bool = False


def submitted(answer: str) -> Job | None:
    """Finds the job in what `sbatch --parsable` printed, among a site's banners; None where it names none.

    The number stands on a line of its own, with the cluster or without, or in sbatch's sentence without --parsable.
    Where several lines could be it, the one that can be nothing else counts, then the last one: sbatch prints it last.
    """
    lines = [_ESCAPES.sub("", line).strip() for line in answer.splitlines()]
    for form in _ANSWERS:
        if found := [match for line in lines if (match := form.fullmatch(line))]:
            return Job(found[-1]["number"], found[-1]["cluster"] or "")
    return None


def show(job: Job) -> Record:
    """Asks the controller once."""
    # Not --oneliner: there, a path's end cannot be told from the next field.
    said, problem = _ask("scontrol", *job.on_cluster(), "show", "job", job.number)
    fields = _fields(said)
    if fields.get("JobState") and fields.get("JobId", job.number) == job.number:
        return Record(fields["JobState"], fields.get("ExitCode", ""), fields.get("StdOut", ""))
    return Record(problem=problem or "scontrol printed no JobState", unknown=_UNKNOWN in problem)


def account(job: Job) -> Record:
    """Asks the accounting database once, which remembers jobs that the controller has forgotten."""
    words = ["--noheader", "--parsable2", "--allocations", f"--jobs={job.number}", "--format=State,ExitCode"]
    said, problem = _ask("sacct", *job.on_cluster(), *words)
    for line in reversed(said.splitlines()):
        state, _, code = line.strip().partition("|")
        if re.fullmatch(r"\d+:\d+", code):
            return Record(state, code)
    return Record(problem=problem or "sacct does not know it")


def ended(record: Record) -> bool:
    """Whether the job has ended for good."""
    return job_states.ended(job_states.read(record.state))


def _ask(*words: str) -> tuple[str, str]:
    """Runs a program; returns its output, and what went wrong in its own words."""
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return "", f"{words[0]} did not answer in {TIMEOUT_S:g} s"
    except OSError as error:
        return "", f"{words[0]}: {error.strerror}"
    said = done.stderr.decode(errors="replace").strip().splitlines()
    if done.returncode:
        return "", said[-1] if said else f"{words[0]} ended with exit code {done.returncode}"
    return done.stdout.decode(errors="surrogateescape"), ""


def _fields(said: str) -> dict[str, str]:
    """The fields of a record of `scontrol show job`, in one line or in many."""
    fields: dict[str, str] = {}
    for line in said.splitlines():
        if match := _PATH.fullmatch(line):
            fields[match[1]] = match[2]
        else:
            words = re.split(r"\s+(?=[A-Z][\w:/]*=)", line.strip())
            first, *others = [word.partition("=")[::2] for word in words if "=" in word] or [("", "")]
            for name, value in others:  # a job's name and its comments may contain what looks like a field
                fields.setdefault(name, value)
            fields[first[0]] = first[1]
    return fields
