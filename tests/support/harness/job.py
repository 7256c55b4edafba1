"""Jobs of their own, for tests that kill, abort or run the command."""

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import mpi, processes

STRAGGLERS_S = 5.0
ALONE = {"OMPI_MCA_btl": "^ofi"}  # of a process without mpiexec; looking for fabrics takes Open MPI 1 s of every start


@dataclass(frozen=True)
class Result:
    """How a job ended. `seconds` is wall time from start until the last of its processes was gone."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float


@dataclass(frozen=True)
class Jobs:
    """Runs jobs, all gone when the call returns; a time-out or a process left behind fails the test."""

    folder: Path

    def __call__(
        self,
        n: int | None,
        code_or_argv: str | Sequence[str],
        timeout: float = 30.0,
        env: dict[str, str] | None = None,
        ulfm: bool = False,
        check: bool = False,
        cwd: Path | None = None,
    ) -> Result:
        """Runs Python code (a string) or a program on n ranks. Blocks until it ended.

        Args:
            n: ranks; None runs the program without mpiexec.
            code_or_argv: Python source, or the program and its arguments.
            timeout: seconds until all is killed and the test failed.
            env: variables on top of the usual ones.
            ulfm: with failure mitigation; skips the test where the MPI has none.
            check: an exit code other than 0 fails the test.
            cwd: the folder to run in; None is that of pytest.
        """
        import pytest  # not at the top: making hosts by hand needs none

        if ulfm and not mpi.is_open_mpi():
            pytest.skip("this MPI has no --with-ft ulfm")
        token = uuid.uuid4().hex
        if isinstance(code_or_argv, str):
            script = self.folder / f"job-{token[:8]}.py"
            script.write_text(code_or_argv)
            code_or_argv = [sys.executable, str(script)]
        argv = [*(mpi.command(n, ulfm) if n is not None else []), *code_or_argv]
        out, err = self.folder / f"{token}.out", self.folder / f"{token}.err"
        start = time.perf_counter()
        # Files, not pipes: a rank left behind would hold a pipe open.
        with out.open("wb") as stdout, err.open("wb") as stderr:
            started = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=mpi.environment(token, {**(ALONE if n is None else {}), **(env or {})}),
                cwd=cwd,
                start_new_session=True,
            )
            try:
                returncode: int | None = started.wait(timeout=timeout)
                left = processes.wait_gone(token, STRAGGLERS_S)
                seconds = time.perf_counter() - start
            except subprocess.TimeoutExpired:
                returncode, left = None, []
            finally:
                processes.kill(token)
                started.wait()
        said = out.read_text(errors="replace"), err.read_text(errors="replace")
        shown = f"\n--- stdout ---\n{said[0][-4000:]}\n--- stderr ---\n{said[1][-4000:]}"
        if returncode is None:
            pytest.fail(f"not done after {timeout:g} s, killed: {' '.join(argv)}{shown}", pytrace=False)
        if left:
            pytest.fail("left behind:\n" + "\n".join(left) + shown, pytrace=False)
        if check and returncode:
            pytest.fail(f"exit code {returncode}: {' '.join(argv)}{shown}", pytrace=False)
        return Result(returncode, *said, seconds)


@dataclass(frozen=True)
class Command:
    """Runs the psgd command: the installed one if this environment has it, else the checkout's."""

    jobs: Jobs

    @property
    def argv(self) -> list[str]:
        """What stands for `psgd`."""
        script = Path(sys.prefix) / "bin" / "psgd"
        return [str(script)] if script.exists() else [sys.executable, "-m", "psgd.launch"]

    def __call__(
        self,
        *args: str,
        n: int | None = None,
        timeout: float = 60.0,
        env: dict[str, str] | None = None,
        ulfm: bool = False,
        check: bool = False,
        cwd: Path | None = None,
    ) -> Result:
        """Runs `psgd ARGS`, alone or as n ranks under mpiexec. The rest is as for a job."""
        return self.jobs(n, [*self.argv, *args], timeout, env, ulfm, check, cwd)


@dataclass(frozen=True)
class Line:
    """How one command line of `Refusals` ended; `loaded` are those of `harness.forks.WATCHED` that it imported."""

    words: Sequence[str]
    returncode: int
    stdout: str
    stderr: str
    loaded: Sequence[str]


@dataclass(frozen=True)
class Refusals:
    """Runs command lines of psgd that have to be refused, all in one job (`harness.forks`)."""

    jobs: Jobs

    def __call__(self, *lines: Sequence[str], imports: Sequence[str] = ()) -> list[str]:
        """Each of the lines ends with exit code 2 and one line of stderr, without a rank; returns what they said.

        Args:
            lines: the words after `psgd`.
            imports: modules that most of them need, imported once.
        """
        said = []
        for line in self.run(*lines, imports=imports):
            assert line.returncode == 2 and line.stdout == "", line
            assert line.stderr.startswith("psgd: error: ") and line.stderr.count("\n") == 1, line
            said.append(line.stderr)
        return said

    def run(self, *lines: Sequence[str], imports: Sequence[str] = ()) -> list[Line]:
        """Runs the lines, whatever they do."""
        asked, report = self.jobs.folder / "lines.json", self.jobs.folder / "report.json"
        asked.write_text(json.dumps({"lines": lines, "imports": imports}))
        program = [sys.executable, str(Path(__file__).with_name("forks.py")), str(asked), str(report)]
        self.jobs(None, program, timeout=100, check=True, cwd=self.jobs.folder)
        return [Line(words, *ended) for words, ended in zip(lines, json.loads(report.read_text()), strict=True)]
