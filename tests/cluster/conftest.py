"""A SLURM cluster of two nodes for the tests in this folder, and what a user does on its login node."""

import contextlib
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from harness import ROOT, mpi, processes
from harness.hosts import UnavailableError
from harness.slurm import Slurm

SCRIPTS = ROOT / "slurm"


class Login:
    """A user on the login node, in a folder of their own.

    Attributes:
        cluster: the cluster.
        folder: where they submit from.
        venv: a virtual environment with psgd.
        mpi: srun's plugin for its MPI.
    """

    def __init__(self, cluster: Slurm, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.venv = environment(cluster.folder / "venv")
        self.mpi = "pmix" if mpi.is_open_mpi() else "pmi2"

    def psgd(self, *words: str, timeout_s: float = 60.0, check: bool = True):
        """Runs `psgd WORDS`."""
        return self.cluster.run(
            str(self.venv / "bin" / "psgd"), *words, cwd=self.folder, timeout_s=timeout_s, check=check
        )

    def edit(self, kind: str, options: str, text: str | None = None, **lines: str) -> str:
        """Edits the block of a bundled script as a user would.

        Args:
            kind: of script.
            options: for OPTIONS.
            text: another script's text.
            lines: what stands behind `NAME=` of a variable, or behind `#SBATCH --name=`, `_` for `-`.

        Returns:
            The new script's path.
        """
        text = text or (SCRIPTS / f"{kind}.sbatch").read_text()
        lines = {
            "VENV": str(self.venv),
            "OPTIONS": f"({options})",
            **({"MPI": self.mpi} if "\nMPI=" in text else {}),
            **lines,
        }
        for name, value in lines.items():
            start = f"{name}=" if name.isupper() else f"#SBATCH --{name.replace('_', '-')}="
            multiline = r"\((?:[^)]*\n)+\)" if name == "TRIALS" else r".*"
            text, count = re.subn(f"^{re.escape(start)}{multiline}$", lambda _: start + value, text, flags=re.M)  # noqa: B023
            assert count == 1, name
        path = self.folder / f"{kind}-{len(list(self.folder.glob('*.sbatch')))}.sbatch"
        path.write_text(text)
        return str(path)

    def sbatch(self, *words: str, env: dict[str, str | None] | None = None) -> str:
        """Submits a script; returns the job's number."""
        return self.cluster.run("sbatch", "--parsable", *words, cwd=self.folder, env=env).stdout.strip()

    def done(self, number: str, timeout_s: float = 60.0) -> str:
        """Waits for a job that must end well; returns its output."""
        job = self.cluster.wait(number, timeout_s=timeout_s)
        said = self.cluster.log(job)
        assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), said
        return said

    def ranks(self, number: str) -> list[int]:
        """Processes of a job's ranks that are alive, on all nodes."""
        found = []
        for pid in processes.marked(self.cluster.token):
            with contextlib.suppress(OSError):
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if f"SLURM_JOB_ID={number}".encode() in variables and b"python" in words[0] and b"train" in words:
                    found.append(pid)
        return found

    def wait_for(self, true: Callable[[], bool], number: str, timeout_s: float = 40.0) -> None:
        """Waits until something is true of a job; shows its output where it does not come."""
        deadline = time.monotonic() + timeout_s
        while not true():
            assert time.monotonic() < deadline, self.cluster.log(self.cluster.job(number))
            time.sleep(0.1)

    def events(self, number: str) -> list[dict[str, Any]]:
        """What a job has logged, over all its turns."""
        path = self.folder / f"psgd-{number}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def next_turn(self, number: str, count: int, timeout_s: float = 60.0) -> None:
        """Waits until a job was requeued `count` times, starts it without delay, and waits for it to get on."""

        def on_its_way() -> bool:
            self.cluster.start_now(number)
            kinds = [event["event"] for event in self.events(number)]
            assert self.cluster.job(number)["JobState"] != "FAILED", self.cluster.log(self.cluster.job(number))
            return kinds.count("start") > count and "progress" in kinds[len(kinds) - kinds[::-1].index("start") :]

        self.wait_for(on_its_way, number, timeout_s)


def environment(folder: Path) -> Path:
    """The virtual environment of this Python, or one like it where psgd is not installed in it."""
    here = Path(sys.prefix)
    if all((here / "bin" / name).exists() for name in ("activate", "psgd")):
        return here
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    (folder / "bin" / "activate").write_text(f"PATH={folder}/bin:{here}/bin:$PATH\n")
    program = folder / "bin" / "psgd"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m psgd.launch "$@"\n')
    program.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def cluster() -> Iterator[Slurm]:
    """Two nodes, for all tests; skips where they cannot be made."""
    try:
        with Slurm(2) as made:
            yield made
    except UnavailableError as error:
        pytest.skip(f"no SLURM here: {error}")


@pytest.fixture
def with_mpich() -> None:
    """Skips a test that takes long with Open MPI."""
    if not_here(not mpi.is_open_mpi()):
        pytest.skip("runs with MPICH; PSGD_CLUSTER=whole runs it with both")


@pytest.fixture
def whole() -> None:
    """Skips a test that takes a minute."""
    if not_here(False):
        pytest.skip("takes a minute; PSGD_CLUSTER=whole runs it")


@pytest.fixture
def login(cluster: Slurm, tmp_path: Path) -> Login:
    """A user in an empty folder."""
    return Login(cluster, tmp_path)


CUTS_BY_TIME = int(os.environ.get("PSGD_CUTS_BY_TIME", "1"))  # of 3; the others are by the same signal, sent by hand
EPOCHS = 24 * CUTS_BY_TIME
# 2 workers with batches of 16 make 47 steps an epoch, and the last step has a checkpoint too.
RUN = f"""
dataset = "digits"
model = "softmax"
batch-size = 16
epochs = {EPOCHS}
optimizer = "momentum"
lr = 0.02
checkpoint-every = 47
"""


class CutJob(NamedTuple):
    """A long job on both nodes, at its first turn when it is made.

    Attributes:
        number: the job's.
        folder: of submission; `run.toml` in it has its options, read again at each turn.
        slow: the line there that makes it last longer than its time limit.
        by_time: how often of three times its time limit is to cut it.
        steps: at its end.
    """

    number: str
    folder: Path
    slow: str
    by_time: int
    steps: int


def not_here(takes_it: bool) -> bool:
    """Whether a test that takes long is left to the suite of the other MPI; PSGD_CLUSTER=whole leaves none."""
    return not takes_it and os.environ.get("PSGD_CLUSTER") != "whole"


@pytest.fixture(scope="session")
def cut_job(cluster: Slurm, tmp_path_factory: pytest.TempPathFactory) -> CutJob | None:
    """Submitted by the first test that asks for it: its time limit comes while other tests run. None with MPICH."""
    if not_here(mpi.is_open_mpi()):
        return None
    user = Login(cluster, tmp_path_factory.mktemp("cut"))
    slow = 'inject = "compute:0.05"\n'
    (user.folder / "run.toml").write_text(RUN + slow)
    path = user.edit("long_job", "--config run.toml", ntasks="3", time="1", signal="B:USR2@60")
    return CutJob(user.sbatch("--nodes=2", path), user.folder, slow, CUTS_BY_TIME, EPOCHS * 47)
