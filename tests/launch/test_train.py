"""`psgd train` as a whole with a stand-in for the training itself: what starts, what is said, how it ends."""

import contextlib
import importlib.util
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness.mpi import below_a_launcher

import psgd
from psgd.config import TrainConfig
from psgd.kernels.errors import UsageError
from psgd.launch import mpiexec, startup, train

ROOT = str(Path(psgd.__file__).resolve().parent.parent)
LAUNCHERS = ("OMPI_", "PMI", "PRTE_", "HYDI_", "SLURM_", "MPI_", "PSGD_")

STAND_IN = """
import importlib.util, os, signal, sys, time, types

training = types.ModuleType("psgd.training")
training.__path__ = importlib.util.find_spec("psgd.training").submodule_search_locations  # its parts are real


def run(config, comm, on_progress=None, *rest):
    from psgd.kernels.errors import DataError
    mode = os.environ.get("MODE", "")
    on_progress.start(400, 4)
    for epoch in range(1, 5):
        comm.Barrier()
        on_progress.update(epoch * 100, epoch, 1 / epoch, epoch / 4)
        time.sleep(0.15 if mode == "slow" else 0)
    if mode == "data":
        raise DataError("dataset x: broken")
    if mode == "crash" and comm.rank == comm.size - 1:
        raise ValueError("what went wrong")
    if mode == "leave":
        sys.stdout.flush()
        comm.Barrier()
        from mpi4py import MPI
        MPI.Finalize()
        os._exit(0)
    if mode == "wait":
        with open(os.path.join(os.environ["MARKS"], str(comm.rank)), "w") as mark:
            mark.write(str(os.getpid()))
        time.sleep(60)
    threads = [os.environ[f"{name}_NUM_THREADS"] for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")]
    result = {"workers": config.workers, "servers": config.servers, "ranks": comm.size, "lr": config.lr}
    result.update(test_accuracy=0.5, threads=threads, staleness={"mean": 0.5, "max": 2, "histogram": {}})
    return result if comm.rank == 0 else None


training.run = run
sys.modules["psgd.training"] = training
from psgd.launch.cli import main

main()
"""

pytestmark = pytest.mark.job


@pytest.fixture
def program(tmp_path):
    script = tmp_path / "psgd"
    script.write_text(STAND_IN)
    return [sys.executable, str(script), "train"]


def environment(**extra):
    env = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    for name in ("OMP", "OPENBLAS", "MKL", "NUMBA"):
        env.pop(f"{name}_NUM_THREADS", None)
    return {**env, "PYTHONPATH": ROOT, **extra}


def run(words, **extra):
    return subprocess.run(
        words,
        env=environment(**extra),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def started(ranks, words):
    """The same command under mpiexec, as a user would start it by hand."""
    found = mpiexec.library()
    return [*mpiexec.command(found.vendor, mpiexec.find(found), ranks, 1, os.geteuid() == 0), *words]


def cards():
    count = startup.gpus()
    return f"{count} GPU{'s' * (count > 1)} each" if count else "no GPU"


def said_by_us(text):
    """Without the line about cores that other programs use."""
    return [
        line for line in text.splitlines() if line.startswith("psgd:") and "ranks are not bound to cores" not in line
    ]


@pytest.mark.parametrize(
    ("arguments", "servers", "workers"),
    [
        ([], 1, 2),
        (["--workers", "1"], 1, 1),
        (["--workers", "1", "--servers", "2"], 2, 1),
        (["--servers", "0"], 0, 1),
    ],
)
def test_it_starts_its_own_ranks(program, arguments, servers, workers):
    done = run([*program, *arguments, "--json", "--lr", "0.25"])
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["servers"], result["workers"]) == (servers, workers)
    assert result["ranks"] == servers + workers
    assert result["lr"] == 0.25
    assert result["threads"] == ["1"] * 4


def test_plain_lines_and_a_summary_without_a_terminal(program):
    done = run(program)
    assert done.returncode == 0
    assert "\r" not in done.stderr
    first, *lines = done.stderr.splitlines()
    assert first.startswith(f"3 ranks on 1 node (1 server, 2 workers), 1 thread each, {cards()}, ")
    assert first.endswith(", not bound to cores") or ", bound to CPUs " in first
    assert [line.split("  ")[0] for line in lines] == [f"epoch {n}/4" for n in range(1, 5)]
    assert done.stdout.splitlines() == [
        "accuracy     0.5000 on the test samples",
        "staleness    mean 0.50, largest 2",
    ]


def test_absurdly_many_ranks_are_refused(program):
    done = run([*program, "--servers", "5000"])
    assert done.returncode == 2
    assert len(said_by_us(done.stderr)) == 1
    assert "ranks started on one machine" in done.stderr


def test_threads_that_were_told_stay(program):
    done = run([*program, "--json"], OMP_NUM_THREADS="2", MKL_NUM_THREADS="3")
    assert json.loads(done.stdout)["threads"] == ["2", "2", "3", "2"]


def test_it_is_a_rank_under_mpiexec(program):
    done = run(started(4, [*program, "--json"]))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["servers"], result["workers"], result["ranks"]) == (1, 3, 4)
    assert result["threads"] == ["1"] * 4


@pytest.mark.parametrize("arguments", [["--lr", "0"], ["--workers", "5"], ["--config", "missing.toml"]])
def test_a_wrong_option_under_mpiexec_is_said_once(program, arguments):
    done = run(started(3, [*program, *arguments]))
    assert done.returncode == 2
    assert len(said_by_us(done.stderr)) == 1
    assert said_by_us(done.stderr)[0].startswith(f"psgd: error: {arguments[0]}")
    assert "Traceback" not in done.stderr


def test_help_under_mpiexec_is_said_once(program):
    done = run(started(3, [*program, "--help"]))
    assert done.returncode == 0
    assert done.stdout.count("Usage:") == 1


def test_verbose_shows_the_command(program):
    done = run([*program, "--verbose"])
    assert "-n 3" in said_by_us(done.stderr)[0]


def test_arguments_for_mpiexec_are_added(program):
    words = "-x MARK=1" if mpiexec.library().vendor == "Open MPI" else "-genv MARK 1"
    done = run([*program, "--verbose", "--json", "--mpiexec-args", words])
    assert done.returncode == 0, done.stderr
    assert f"-n 3 {words} " in said_by_us(done.stderr)[0]


def test_a_run_that_did_not_complete_is_no_success(program):
    done = run(program, MODE="leave")
    assert done.returncode != 0
    assert "did not complete" in done.stderr or done.returncode > 1


def test_an_error_of_all_ranks_is_said_once_and_exit_2(program):
    done = run(program, MODE="data")
    assert done.returncode == 2
    assert len(said_by_us(done.stderr)) == 1
    assert "dataset x: broken" in said_by_us(done.stderr)[0]


def test_options_of_a_strategy_that_do_not_fit_are_one_line():
    for words, why in (
        (["softsync", "--softsync", "4"], "softsync: expected 1 to 2, the number of workers, got 4"),
        (["easgd", "--rho", "100"], "pass a rho of at most 5, or none"),
    ):
        done = run([sys.executable, "-m", "psgd.launch", "train", "--strategy", *words])
        assert done.returncode == 2
        lines = said_by_us(done.stderr)
        assert len(lines) == 1 and why in lines[0], lines


def test_a_crash_of_one_rank_ends_the_job(program):
    done = run(program, MODE="crash")
    assert done.returncode not in (0, 2)
    assert done.stderr.count("ValueError: what went wrong") == 1


FOREIGN = {
    "Open MPI": ({"PMI_RANK": "{}", "PMI_SIZE": "3"}, "srun --mpi=pmix"),
    "MPICH": ({"OMPI_COMM_WORLD_RANK": "{}", "OMPI_COMM_WORLD_SIZE": "3"}, "srun --mpi=pmi2"),
}


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_another_mpi_started_refuse(program, tmp_path, rank):
    variables, mend = FOREIGN[mpiexec.library().vendor]
    words = below_a_launcher(tmp_path, program)
    done = run(words, **{name: value.format(rank) for name, value in variables.items()})
    assert done.returncode == (0 if rank else 2)
    assert len(said_by_us(done.stderr)) == (0 if rank else 1)
    if rank == 0:
        for part in ("says 3 ranks, but each would train alone", "plain `psgd train`", mend):
            assert part in done.stderr
    assert "epoch" not in done.stderr


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, seconds):
    limit = time.monotonic() + seconds
    while not condition() and time.monotonic() < limit:
        time.sleep(0.02)
    return condition()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)],
)
def test_a_signal_ends_all_ranks(program, tmp_path, number, code):
    marks = tmp_path / "marks"
    marks.mkdir()
    launcher = subprocess.Popen(
        program,
        env=environment(MODE="wait", MARKS=str(marks)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # It is ignored in the background of a script.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 -- it takes no lock
    )
    pids = []
    try:
        assert wait_for(lambda: sum(f.stat().st_size > 0 for f in marks.iterdir()) == 3, 30)
        pids = [int(mark.read_text()) for mark in marks.iterdir()]
        launcher.send_signal(number)
        assert launcher.wait(10) == code
        assert wait_for(lambda: not any(map(alive, pids)), 10)
    finally:
        launcher.kill()
        launcher.wait()
        for pid in filter(alive, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_job_that_is_stopped_stops_its_ranks_and_goes_on(program, tmp_path):
    """Ctrl-Z, then fg or bg; SIGHUP is ignored, as under nohup."""
    marks = tmp_path / "marks"
    marks.mkdir()

    def prepare():
        os.setpgid(0, 0)  # as a shell does for each job
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    launcher = subprocess.Popen(
        program,
        env=environment(MODE="wait", MARKS=str(marks)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=prepare,  # noqa: PLW1509 -- it takes no lock
    )
    pids = []
    try:
        assert wait_for(lambda: sum(f.stat().st_size > 0 for f in marks.iterdir()) == 3, 30)
        pids = [int(mark.read_text()) for mark in marks.iterdir()]
        for _ in range(2):
            launcher.send_signal(signal.SIGTSTP)
            assert wait_for(lambda: [state(pid) for pid in (launcher.pid, *pids)] == ["T"] * 4, 10)
            launcher.send_signal(signal.SIGCONT)
            assert wait_for(lambda: "T" not in [state(pid) for pid in (launcher.pid, *pids)], 10)
        launcher.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert launcher.poll() is None and all(map(alive, pids))
        launcher.terminate()
        assert launcher.wait(10) == 143
        assert wait_for(lambda: not any(map(alive, pids)), 10)
    finally:
        launcher.kill()
        launcher.wait()
        for pid in filter(alive, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_an_interrupted_run_says_how_to_go_on(tmp_path):
    """And the same command again, or one that does not fit, is refused before MPI starts."""
    words = [sys.executable, "-m", "psgd.launch", "train", "--workers", "1", "--epochs", "400", "--hidden", "4"]
    words += ["--checkpoint-dir", str(tmp_path / "c"), "--checkpoint-every", "20"]
    launcher = subprocess.Popen(
        words,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 -- it takes no lock
    )
    assert wait_for(lambda: list(tmp_path.glob("c/step-*[0-9]")), 60)
    busy = run(words)
    launcher.send_signal(signal.SIGINT)
    said = launcher.communicate(timeout=30)[1]
    assert launcher.returncode == 130
    newest = max(tmp_path.glob("c/step-*[0-9]"))
    assert said_by_us(said)[-1] == (
        f"psgd: the newest checkpoint is {newest}, at step {int(newest.name[5:]):,}; the same command with --resume "
        "continues from it"
    )
    again, other = run(words), run([*words, "--resume", "--seed", "3"], PATH="")
    for refused, why in (
        (busy, "another run is writing to"),
        (again, "from a run with the same options: continue that run with --resume"),
        (other, "is from a run with seed 0, but this run has 3"),
    ):
        (line,) = refused.stderr.splitlines()
        assert refused.returncode == 2 and why in line, line


def test_memory_that_killed_ranks_have_left_is_removed(program, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    words = [*program, "--workers", "1"]
    launcher = subprocess.Popen(
        words, env=environment(MODE="wait", MARKS=str(marks)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    assert wait_for(lambda: sum(f.stat().st_size > 0 for f in marks.iterdir()) == 2, 30)
    pids = [int(mark.read_text()) for mark in marks.iterdir()]
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    files = {line.split()[-1] for line in lines if "/dev/shm/mpich_shm_" in line or "/dev/shm/sm_segment" in line}
    assert files and all(map(os.path.exists, files))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert launcher.wait(20) != 0
    assert not any(map(os.path.exists, files))


def test_the_bar_moves_on_the_launchers_terminal(program):
    control, terminal = pty.openpty()
    launcher = subprocess.Popen(
        program,
        env=environment(MODE="slow"),
        stdout=subprocess.PIPE,
        stderr=terminal,
        stdin=subprocess.DEVNULL,
    )
    os.close(terminal)
    drawn, moments = b"", []
    limit = time.monotonic() + 30
    while time.monotonic() < limit and select.select([control], [], [], 30)[0]:
        try:
            part = os.read(control, 4096)
        except OSError:  # the other side is closed
            break
        drawn += part
        moments += [time.monotonic()] * part.count(b"\r" + b"epoch")
    with launcher.stdout:
        assert b"accuracy     0.5000" in launcher.stdout.read()
    assert launcher.wait(30) == 0
    os.close(control)
    assert drawn.startswith(b"3 ranks on 1 node (1 server, 2 workers)")
    assert drawn.count(b"\n") == 2
    assert len(moments) == 4
    assert moments[-1] - moments[0] > 0.3  # as it happened, not all at the end


@pytest.mark.parametrize(
    ("given", "size", "result"),
    [
        ({}, 1, (0, 1)),
        ({}, 3, (1, 2)),
        ({"servers": 2}, 5, (2, 3)),
        ({"workers": 2}, 3, (1, 2)),
        ({"servers": 1, "workers": 2}, 3, (1, 2)),
        ({"workers": 1}, 1, (0, 1)),
    ],
)
def test_fit(given, size, result):
    fitted = train.fit(TrainConfig(**given), size)
    assert (fitted.servers, fitted.workers) == result


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({"servers": 3}, 3),
        ({"servers": 0}, 2),
        ({"workers": 3}, 3),
        ({"servers": 1}, 1),
        ({"servers": 1, "workers": 1}, 3),
    ],
)
def test_what_does_not_fit_is_refused(given, size):
    with pytest.raises(UsageError, match="--servers"):
        train.fit(TrainConfig(**given), size)


@pytest.mark.parametrize(
    "given", [{"workers": 2, "servers": 1, "spares": 2}, {"workers": 3, "strategy": "allreduce", "grow": "0.5:3,1:5"}]
)
def test_who_looks_for_room_counts_no_ranks_that_stand_by(given, monkeypatch, tmp_path):
    config = TrainConfig(checkpoint_dir=tmp_path, **given)
    monkeypatch.setattr(train.ranks, "place", lambda: (0, 5))
    monkeypatch.setattr(train.launcher_env, "place_here", lambda: (0, 5))
    assert train._fitting(config) is config


def test_what_could_not_be_written_counts_more_than_ranks_that_died():
    lost: dict[str, object] = {"lost_ranks": [1]}
    assert train._code(lost, complete=True, died=True) == 4
    assert train._code(lost, complete=False, died=True) == 1
    assert train._code(lost | {"requeue": True}, complete=False, died=True) == 85
    assert train._code({"lost_ranks": []}, complete=True, died=True) == 4
    assert train._code(None, complete=True, died=True) == 0


def test_a_lost_rank_leaves_word_of_how_to_go_on(tmp_path):
    words = [sys.executable, "-m", "psgd.launch", "train", "--workers", "1", "--epochs", "400", "--hidden", "4"]
    words += ["--inject", "kill:0@2000"]
    told = "psgd: the newest checkpoint is"
    saving = run([*words, "--checkpoint-dir", str(tmp_path / "c"), "--checkpoint-every", "20"])
    assert saving.returncode not in (0, 1, 2, 3, 85) and saving.stderr.count(told) == 1, saving.stderr
    assert said_by_us(saving.stderr)[-1].endswith("the same command with --resume continues from it")
    alone = run(words)
    assert alone.returncode == saving.returncode and "nothing was saved" not in alone.stderr


def test_weights_of_a_diverged_run_replace_no_earlier_file(tmp_path):
    file = tmp_path / "weights.npz"
    file.write_bytes(b"sound")
    words = [sys.executable, "-m", "psgd.launch", "train", "--workers", "1", "--servers", "0", "--epochs", "2"]
    result = run([*words, "--lr", "1e30", "--save", str(file)])
    assert result.returncode == 3 and f"--save {file}: NaN or infinity in the final weights" in result.stderr
    assert file.read_bytes() == b"sound" and list(tmp_path.iterdir()) == [file]


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is here")
@pytest.mark.parametrize("option", ["--device", "--server-device"])
def test_a_gpu_that_is_missing_is_all_that_is_said(option):
    done = run([sys.executable, "-m", "psgd.launch", "train", option, "cuda"])
    assert done.returncode == 2 and done.stdout == ""
    said = [line for line in done.stderr.splitlines() if "not bound to cores" not in line]
    assert len(said) == 1 and said[0].startswith("psgd: error: device cuda: expected ")


def test_in_one_file_the_summary_comes_last(tmp_path):
    for _ in range(3):
        with open(tmp_path / "out", "w+") as out:
            command = [sys.executable, "-m", "psgd.launch", "train", "--epochs", "3"]
            subprocess.run(command, stdout=out, stderr=out, timeout=120, check=True)
            out.seek(0)
            lines = [line.split(" ")[0] for line in out if line.startswith(("epoch", "run", "time"))]
        assert lines == ["epoch", "epoch", "epoch", "run", "time"]


def test_survive_is_refused_where_a_death_would_end_the_run(refused):
    (line,) = refused.run(["train", "--survive", "--record", "a.rec"])
    assert line.returncode == 2 and line.stderr.startswith("psgd: error: --survive: expected a run that goes on"), line
    assert line.stderr.rstrip().endswith(("got --record (of all workers)", "got an MPI without ULFM"))
