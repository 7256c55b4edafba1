"""`psgd slurm`: its options are those of `render`, and it refuses what is wrong before anything is submitted."""

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import psgd
from psgd.launch import cli
from psgd.launch.slurm import command
from psgd.launch.slurm.batch_options import BatchOptions
from psgd.launch.slurm.render import render
from psgd.launch.slurm.templates import KINDS

ROOT = str(Path(psgd.__file__).resolve().parent.parent)
PROBE = """
import sys
from psgd.launch import cli
for words in (["render", "long_job"], ["--help"], ["submit", "--help"]):
    try:
        cli.main(["slurm", *words])
    except SystemExit as ending:
        assert not ending.code, words
print("LOADED", *[name for name in ("mpi4py", "numba", "cupy", "numpy") if name in sys.modules])
"""


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs `psgd slurm WORDS` in this process; returns its exit code, stdout and stderr."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "PMI", "OMPI_"))]:
        monkeypatch.delenv(name)

    def call(*words):
        with pytest.raises(SystemExit) as ending:
            cli.main(["slurm", *words])
        return ending.value.code, *capsys.readouterr()

    return call


def test_options_are_the_fields():
    keywords = [field.name for field in fields(BatchOptions)]
    for one in (command.render_command, command.submit):
        assert [p.name for p in one.params if p.name in keywords] == keywords
    assert all(kind in command.slurm.help for kind in KINDS)


def test_render_and_help_load_nothing():
    env = {**os.environ, "PYTHONPATH": ROOT}
    done = subprocess.run([sys.executable, "-c", PROBE], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(render("long_job"))
    assert done.stdout.splitlines()[-1] == "LOADED"


@pytest.mark.parametrize("kind", KINDS)
def test_train_knows_the_options_of_every_kind(run, kind):
    assert run("render", kind) == (0, render(kind), "")


def test_options_of_both_reach_the_script(run):
    words = ["--workers", "3", "--sbatch=--qos=a", "--sbatch=--qos=b", "--time-min", "5"]
    expected = render(
        "cpu_parameter_server",
        ["--epochs", "3", "--lr", "0.2"],
        workers=3,
        sbatch=["--qos=a", "--qos=b"],
        time_min=5,
    )
    assert run("render", "cpu_parameter_server", *words, "--", "--epochs", "3", "--lr", "0.2") == (0, expected, "")


def test_a_dry_run_takes_this_environments_mpi(run, monkeypatch):
    from psgd.launch.slurm import submit

    monkeypatch.setattr(submit, "plugin", lambda: "pmi2")
    code, text, _ = run("submit", "cpu_parameter_server", "--dry-run", "--venv", "/x")
    assert (code, text) == (0, render("cpu_parameter_server", venv="/x", mpi="pmi2"))
    assert (
        run("submit", "cpu_parameter_server", "--dry-run", "--venv", "/x", "--mpi", "none")[1].count("\nMPI=none ") == 1
    )


def test_a_job_is_followed_on_its_own_cluster(run, programs, monkeypatch, tmp_path):
    from psgd.launch.slurm import submit

    monkeypatch.setattr(submit, "POLL_S", 0.01)
    (tmp_path / "a log").write_text("trained\n")
    programs(
        sbatch="cat >/dev/null; echo 'Welcome to 2 clusters'; echo '4711;lab'",
        scontrol='[ "$1 $2 $5" = "-M lab 4711" ] || { echo "Invalid job id specified" >&2; exit 1; }'
        '\necho "JobId=4711 JobState=FAILED ExitCode=3:0 StdOut=$PWD/a log"',
    )
    words = ["submit", "cpu_parameter_server", "--wait", "--venv", "/x", "--mpi", "none"]
    assert run(*words) == (
        3,
        "4711\ntrained\n",
        "psgd: job 4711 is on cluster lab\npsgd: job 4711: failed\n",
    )


def test_a_configuration_files_options_count(run, tmp_path):
    """With what else a job's size depends on; the file's strategy is not overridden by the kind's."""
    path = tmp_path / "run.toml"
    path.write_text('strategy = "allreduce"\nworkers = 6\n')
    code, text, _ = run("render", "cpu_parameter_server", "--", "--config", str(path))
    assert code == 0 and "#SBATCH --ntasks=6" in text and f"OPTIONS=(--config {path})" in text
    path.write_text('mesh = "pipe=2,data=3"\nservers = 2\nstrategy = "sync"\n')
    assert "#SBATCH --ntasks=10" in run("render", "cpu_parameter_server", "--", "--config", str(path))[1]
    for device, gpus, code in (
        ("cuda", (), 2),
        ("cpu", ("--gpus-per-node=2",), 2),
        ("cuda", ("--gpus-per-node=2",), 0),
    ):
        path.write_text(f'device = "{device}"\n')
        assert run("render", "long_job", *gpus, "--", "--config", str(path))[0] == code
    for line in ("replicas = 1", "drop-straggler-after = 60.0"):
        path.write_text(f"{line}\nservers = 2\n")
        code, text, _ = run("render", "long_job", "--launcher=mpirun", "--", "--config", str(path))
        assert code == 0 and "--with-ft ulfm" in text
        code, _, said = run("render", "long_job", "--", "--config", str(path))
        assert code == 2 and "expected --launcher mpirun" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["render", "gpu"], "'gpu'"),
        (["render", "array", "--nodes", "many"], "--nodes"),
        (["render", "array", "--", "--epoch", "3"], "--epochs"),
        (["render", "array", "--", "--lr", "-1"], "--lr: expected a finite number above 0, got -1.0"),
        (["render", "gpu_allreduce", "--", "--staleness", "3"], "--staleness: strategy allreduce does not take it"),
        (["render", "array", "--trial", "--lr 1", "--trial", "--bogus 3"], "--trial '--bogus 3': No such option"),
        (["render", "array", "--trial", "--lr -1"], "--trial '--lr -1': --lr: expected a finite number above 0"),
        (["render", "array", "--trial", "--period 2"], "--trial '--period 2': --period: strategy sync does not take"),
        (["render", "array", "--launcher", "mpirun", "--mpi", "pmi2"], "--mpi: only srun takes it"),
        (["submit", "array", "--wait"], "--wait: expected a single job"),
        (["submit", "long_job", "--wait", "--sbatch=--array=0-3"], "--wait: expected a single job"),
        (["submit", "long_job", "--wait", "--sbatch=-a0-3"], "--wait: expected a single job"),
        (["submit", "array", "--nodes", "9"], "--nodes 9: expected at most one per rank"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_2(run, words, message):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("psgd: error: ")
    assert message in line
