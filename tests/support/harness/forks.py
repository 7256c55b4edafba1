"""Many command lines of `psgd` in one job: each in a fork of a process that has imported what they begin with.

Forks are as separate as processes are, and need no start of Python. Run as `python forks.py LINES REPORT`: LINES holds
`{"lines": [["train", ...], ...], "imports": ["psgd.launch.bench"]}`; REPORT takes a list of exit code, stdout, stderr
and the modules that the line has loaded.
"""

import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path

WATCHED = ("mpi4py", "numba", "cupy", "numpy")
LINE_S = 30  # then SIGALRM ends the fork


def run(line: list[str], folder: Path) -> tuple[int, str, str, list[str]]:
    """Runs one command line in a fork."""
    names = [folder / name for name in ("out", "err", "loaded")]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(LINE_S)
            for number, name in enumerate(names[:2], 1):
                opened = os.open(name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
                os.dup2(opened, number)
            code = command(line)
            names[2].write_text(json.dumps([name for name in WATCHED if name in sys.modules]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    texts = [name.read_text() if name.exists() else "" for name in names]
    for name in names:
        name.unlink(missing_ok=True)
    return status, texts[0], texts[1], json.loads(texts[2] or "[]")


def command(line: list[str]) -> int:
    """What the program `psgd` does; returns its exit code."""
    from psgd.launch import cli

    sys.argv = ["psgd", *line]
    try:
        cli.main()
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)


def main(lines: str, report: str) -> None:
    """Runs all lines, one after the other."""
    asked = json.loads(Path(lines).read_text())
    for name in ["psgd.launch.cli", *asked["imports"]]:
        importlib.import_module(name)
    assert "mpi4py.MPI" not in sys.modules, "MPI does not work in a fork"
    folder = Path(report).parent
    Path(report).write_text(json.dumps([run(line, folder) for line in asked["lines"]]))


if __name__ == "__main__":
    main(*sys.argv[1:])
