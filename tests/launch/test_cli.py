import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import mpi

import psgd

ROOT = str(Path(psgd.__file__).resolve().parent.parent)
HEAVY = ("mpi4py", "numba", "cupy")
LAUNCHERS = ("OMPI_", "PMI", "PRTE_", "HYDI_", "SLURM_", "MPI_")

PROBE = """
import sys
from psgd.launch import cli
try:
    cli.main(sys.argv[1:])
finally:
    loaded = [name for name in ("mpi4py", "numba", "cupy", "numpy") if name in sys.modules]
    print("LOADED", *loaded, file=sys.stderr)
"""


def environment(**extra):
    env = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    return {**env, "PYTHONPATH": ROOT, **extra}


def psgd_command(*arguments, cwd, probe=False, rank=False, **env):
    words = [sys.executable, *(["-c", PROBE] if probe else ["-m", "psgd.launch"]), *arguments]
    return subprocess.run(
        mpi.below_a_launcher(cwd, words) if rank else words,
        env=environment(**env),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def loaded(done):
    return done.stderr.splitlines()[-1].split()[1:]


@pytest.mark.parametrize("arguments", [["--help"], [], ["--version"]])
def test_the_top_level_loads_nothing_heavy(arguments, tmp_path):
    done = psgd_command(*arguments, cwd=tmp_path, probe=True)
    assert done.returncode == 0
    assert set(loaded(done)) <= ({"mpi4py"} if "--version" in arguments else set())
    assert "psgd" in done.stdout


@pytest.mark.parametrize("command", ["train", "bench", "doctor", "plot", "top", "trace"])
def test_help_of_a_command_starts_nothing(command, tmp_path):
    done = psgd_command(command, "--help", cwd=tmp_path, probe=True)
    assert done.returncode == 0
    assert f"psgd {command}" in done.stdout
    assert not set(loaded(done)) & set(HEAVY)


@pytest.mark.alone
def test_help_is_quick(tmp_path):
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        assert psgd_command("--help", cwd=tmp_path).returncode == 0
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.3


WRONG = [
    (["trian"], "did you mean train?"),
    (["bench", "foo"], "no command 'foo' of psgd bench; expected one of allgather, allreduce, bcast, codec"),
    (["checkpoint", "foo"], "no command 'foo' of psgd checkpoint; expected one of export, show, verify"),
    (["checkpoint", "shwo"], "no command 'shwo' of psgd checkpoint; did you mean show? expected one of export"),
    (["slurm", "foo"], "no command 'foo' of psgd slurm; expected one of render, submit"),
    (["--nonsense"], "--nonsense"),
    (["train", "--learning-rate", "0.1"], "no option '--learning-rate'; did you mean --lr?"),
    (["slurm", "render", "long_job", "--", "--nprocs", "2"], "no option '--nprocs'; did you mean --workers?"),
    (["train", "--zzz"], "no option '--zzz'; see psgd train --help"),
    (["train", "--nonsense"], "--nonsense"),
    (["train", "--epoch", "3"], "--epochs"),
    (["train", "--lr", "-1"], "--lr: expected a finite number above 0, got -1.0"),
    (["train", "--lr", "fast"], "--lr: expected a finite number above 0, got 'fast'"),
    (["train", "--strategy", "asink"], "did you mean async?"),
    (["train", "--config", "missing.toml"], "missing.toml: cannot be read"),
    (["train", "--dataset", "no/such/folder"], "no/such/folder"),
    (["train", "--log", "no/such/folder/run.jsonl"], "no/such/folder"),
    (["train", "--workers", "2", "--servers", "0"], "--servers 0"),
    (["train", "--mpiexec-args", "'open"], "--mpiexec-args"),
    (["train", "surplus"], "surplus"),
    (["plot", "missing.jsonl"], "missing.jsonl: cannot be read"),
    (["plot"], "LOG"),
    (["train", "--hidden", "1e11"], "--hidden: expected a whole number, at least 1, got '1e11'"),
    (["train", "--epochs", "9" * 5000], "--epochs: expected a whole number"),
    (["train", "--lr", "9" * 5000], "--lr: expected a finite number above 0, got inf"),
    (["train", "--inject", "compute:1e308"], "expected a number from 0 to 1e+06"),
    (["train", "--hidden", "100000000000"], "--hidden: expected at most 2147483647, got 100000000000"),
    (["bench", "pushpull", "--workers", "9" * 30], "--workers: expected at most 2147483647"),
    (["bench", "pushpull", "--sizes", "9" * 400 + "GiB"], "--sizes: expected at most 4 TiB"),
    (["slurm", "render", "long_job", "--nodes", "9" * 30], "--nodes: expected at most 2147483647"),
    (["slurm", "render", "array", "--trial", ""], "--trial: expected a value, got an empty text ''"),
    (["slurm", "render", "array", "--trial="], "--trial: expected a value, got an empty text ''"),
    (["slurm", "submit", "long_job", "--account", " "], "--account: expected a value, got an empty text ' '"),
    (["checkpoint", "show", ""], "argument: expected a value, got an empty text"),
    (["plot", "", "-o", "a.png"], "argument: expected a value"),
    (["plot", "a.jsonl", "-o", ""], "-o: expected a value"),
    (["train", "--config", ""], "--config: expected a value"),
    (["bench", "train", "--peers", ""], "--peers: expected a value"),
]


def test_a_wrong_option_is_one_line_and_exit_2(refused):
    lines = refused.run(*[arguments for arguments, _ in WRONG])
    for line, (_, said) in zip(lines, WRONG, strict=True):
        assert (line.returncode, line.stdout) == (2, ""), line
        assert line.stderr.startswith("psgd: error: ") and line.stderr.count("\n") == 1, line
        assert len(line.stderr) < 500 and said in line.stderr, (said, line)
        assert not set(line.loaded) & set(HEAVY), line


RANKS = [
    {"OMPI_COMM_WORLD_RANK": "{}", "OMPI_COMM_WORLD_SIZE": "3"},
    {"PMI_RANK": "{}", "PMI_SIZE": "3"},
    {"PMIX_RANK": "{}", "SLURM_STEP_NUM_TASKS": "3"},
    {"SLURM_PROCID": "{}", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "3"},
]


@pytest.mark.parametrize("variables", RANKS, ids=lambda v: next(iter(v)))
@pytest.mark.parametrize(
    ("arguments", "code"), [(["--help"], 0), (["train", "--help"], 0), (["train", "--lr", "0"], 2)]
)
def test_only_rank_0_prints(variables, arguments, code, tmp_path):
    spoken = []
    for rank in range(2):
        env = {name: value.format(rank) for name, value in variables.items()}
        done = psgd_command(*arguments, cwd=tmp_path, probe=True, rank=True, **env)
        assert not set(loaded(done)) & set(HEAVY)
        text = done.stdout + "".join(done.stderr.splitlines(keepends=True)[:-1])
        spoken.append((done.returncode, bool(text)))
    assert spoken == [(code, True), (0, False)]


@pytest.mark.parametrize("below_a_launcher", [False, True])
def test_commands_that_are_never_ranks_always_speak(below_a_launcher, tmp_path):
    """From rank 1 of a job they say as much, and end with the same exit code, as from a shell."""
    for words in ("checkpoint export nothere", "plot nothere.jsonl", "bench codec --codecs x"):
        arguments = words.split()
        done = psgd_command(*arguments, cwd=tmp_path, rank=below_a_launcher, PMI_RANK="1", PMI_SIZE="3")
        assert (done.returncode, done.stderr.count("psgd: error: ")) == (2, 1), arguments
    done = psgd_command("checkpoint", "--help", cwd=tmp_path, rank=below_a_launcher, PMI_RANK="1", PMI_SIZE="3")
    assert (done.returncode, "Usage: psgd checkpoint" in done.stdout) == (0, True)


@pytest.mark.parametrize("variables", RANKS, ids=lambda v: next(iter(v)))
def test_variables_alone_make_no_rank(variables, tmp_path):
    env = {name: value.format(1) for name, value in variables.items()}
    done = psgd_command("train", "--lr", "0", cwd=tmp_path, **env)
    assert (done.returncode, done.stderr.count("psgd: error: --lr")) == (2, 1)


def test_a_closed_pipe_is_no_traceback(tmp_path):
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as gone:
        done = subprocess.run(
            [sys.executable, "-m", "psgd.launch", "train", "--help"],
            env=environment(),
            cwd=tmp_path,
            stdout=gone,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("group", ["bench", "checkpoint", "slurm"])
def test_a_group_without_a_command_prints_its_help(group, tmp_path):
    done = psgd_command(group, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: psgd {group} ") and "\nCommands:\n" in done.stdout
