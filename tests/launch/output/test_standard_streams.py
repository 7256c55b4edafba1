"""Every command with descriptors that are closed, full or broken, and with names that stdout cannot encode."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import psgd
from psgd.checkpoint import folder
from psgd.checkpoint.manifest import Manifest
from psgd.checkpoint.state import State
from psgd.checkpoint.writer import Writer

ROOT = str(Path(psgd.__file__).resolve().parent.parent)
LAUNCHERS = ("OMPI_", "PMI", "PRTE_", "HYDI_", "SLURM_", "MPI_")
NAME = "donn\udce9es \N{SNOWMAN}"  # no UTF-8, and what Latin-1 lacks
LOST = "psgd: error: stdout: the output could not be written: "
EVENTS = '{"event": "start"}\n{"event": "progress", "time": 0.1, "samples": 5, "loss": 2.5}\n'


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a checkpoint and a log under such a name."""
    made = tmp_path_factory.mktemp("place")
    writer = Writer(made / NAME, "key", "server-0", ["server-0"])
    (made / NAME).mkdir()
    state = State({"params": np.arange(3.0)}, {"range": [0, 3, 3], "cut": ["params"]})
    writer.save(1, state, Manifest(1, 10, 1, None, {"workers": 1, "servers": 1, "dataset": NAME}, {}))
    writer.wait()
    assert folder.folders(made / NAME)
    (made / f"{NAME}.jsonl").write_text(EVENTS)
    return made


def run(place, shell, *words, **env):
    """Runs a command with the shell's redirections; stdout and stderr come back as bytes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    return subprocess.run(
        ["bash", "-c", f'exec "$@" {shell}', "bash", sys.executable, "-m", "psgd.launch", *words],
        env={**kept, "PYTHONPATH": ROOT, **env},
        cwd=place,
        capture_output=True,
        timeout=100,
        check=False,
    )


COMMANDS = [
    ["--help"],
    ["--version"],
    ["train", "--help"],
    ["slurm", "render", "long_job"],
    ["checkpoint", "show", NAME],
    ["checkpoint", "verify", NAME],
    ["checkpoint", "export", NAME, "-o", f"{NAME}.npz"],
    ["plot", f"{NAME}.jsonl", "-o", f"{NAME}.svg"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_output_that_is_lost_is_one_line_and_an_exit_code(words, place):
    if words[0] == "plot":
        pytest.importorskip("matplotlib")
    for shell, reason in ((">/dev/full", "No space left on device"), (">&-", "it is closed")):
        done = run(place, shell, *words)
        assert (done.returncode, done.stderr.decode()) == (1, f"{LOST}{reason}\n"), shell


def test_where_all_is_closed_the_exit_code_tells(place):
    assert run(place, "<&- >&- 2>&-", "--version").returncode == 1
    good = run(place, "<&- 2>&-", "--version")
    assert good.returncode == 0 and good.stdout and not good.stderr


@pytest.mark.parametrize("shell", [">/dev/full", ">&-"])
def test_an_error_of_the_command_stays_one(shell, place):
    done = run(place, shell, "train", "--lr", "0")
    assert done.returncode == 2
    assert done.stderr.decode() == "psgd: error: --lr: expected a finite number above 0, got 0.0\n"


def test_the_next_file_does_not_become_stdout(place):
    """Descriptor 1 is what a program opens next where it was closed."""
    code = (
        "import os, sys; from psgd.launch.output import standard_streams as s; s.prepare();"
        "file = open('next', 'wb'); file.write(b'weights'); file.flush();"
        "print('lost');"
        "sys.exit(s.finish(0) if file.fileno() > 2 else 9)"
    )
    done = subprocess.run(
        ["bash", "-c", f'exec "{sys.executable}" -c "{code}" <&- >&- 2>&-'],
        env={**os.environ, "PYTHONPATH": ROOT},
        cwd=place,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1 and (place / "next").read_bytes() == b"weights"


@pytest.mark.parametrize("encoding", ["utf-8:strict", "ascii"])
@pytest.mark.parametrize("words", COMMANDS[4:], ids=" ".join)
def test_any_name_can_be_printed(words, encoding, place):
    if words[0] == "plot":
        pytest.importorskip("matplotlib")
    done = run(place, "", *words, PYTHONIOENCODING=encoding, LC_ALL="C.UTF-8")
    assert (done.returncode, done.stderr) == (0, b"")
    if words[1] != "verify":  # it prints the names of the folders in it
        assert os.fsencode(NAME) in done.stdout


@pytest.mark.parametrize("encoding", ["utf-8:strict", "ascii"])
def test_a_script_has_the_names_own_bytes(encoding, place):
    words = ["slurm", "render", "long_job", "--venv", f"/home/{NAME}", "--", "--dataset", "digits"]
    done = run(place, "", *words, PYTHONIOENCODING=encoding)
    assert done.returncode == 0 and b"VENV='/home/" + os.fsencode(NAME) + b"'" in done.stdout


@pytest.mark.job
@pytest.mark.parametrize(
    ("ranks", "shell", "reason"),
    [("2", ">/dev/full", "No space left on device"), ("1 --servers 0", ">&-", "it is closed")],
)
def test_a_run_that_is_complete_and_cannot_say_so(ranks, shell, reason, place):
    """On several ranks, where mpiexec stands between, and on one."""
    done = run(place, shell, "train", "--epochs", "1", "--json", "--workers", *ranks.split())
    assert done.returncode == 1, done.stderr
    assert done.stderr.decode().splitlines()[-1] == LOST + reason and b"Traceback" not in done.stderr


@pytest.mark.job
def test_a_run_without_a_stderr_gives_its_result(place):
    done = run(place, "<&- 2>/dev/full", "train", "--epochs", "1", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["samples"] == 1497


@pytest.mark.job
def test_a_run_on_a_full_disk_with_names_that_stdout_lacks(place):
    """Logs, a record, a file a rank: the run ends well, its result is printed, all is said, the exit code is not 0."""
    x = np.random.default_rng(0).normal(size=(60, 4)).astype("f4")
    np.savez(place / f"{NAME}.npz", x=x, y=np.arange(60) % 3)
    for name in ("log", "order"):
        (place / name).symlink_to("/dev/full")
    (place / "logs").mkdir()
    (place / "logs" / "rank-0001.log").symlink_to("/dev/full")
    words = ["--strategy", "async", "--log", "log", "--record", "order", "--log-dir", "logs", "--epochs", "1"]
    words += ["--dataset", f"{NAME}.npz", "--save", f"{NAME} weights.npz"]
    done = run(place, "", "train", *words, PYTHONIOENCODING="utf-8:strict")
    said = done.stderr.decode().splitlines()
    assert done.returncode == 1
    assert b"run          " + os.fsencode(NAME) + b".npz, mlp" in done.stdout
    assert (place / f"{NAME} weights.npz").stat().st_size > 1000
    lost = "log log, record order, --log-dir logs/rank-0001.log"
    assert said[-1] == f"psgd: error: the run is complete, but could not write all of {lost}"
    assert sum(line.startswith("psgd: warning: --log-dir logs/rank-0001.log: No space") for line in said) == 1
    told = (place / "logs" / "rank-0000.log").read_bytes()
    assert told.count(b"psgd: warning: log log: No space left on device; it ends here\n") == 1
    assert told.count(b"psgd: warning: record order: No space left on device; it ends here\n") == 1
    assert os.fsencode(NAME) in told
