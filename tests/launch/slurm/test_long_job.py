"""The long job's script with programs of SLURM of our own: a controller that is busy costs it nothing but time."""

import os
import subprocess

import pytest

from psgd.launch.slurm.render import render

pytestmark = pytest.mark.one_mpi

# In place of the ranks: makes a checkpoint where MAKES is set, writes to the log, and says that steps are left.
RANKS = """
echo ranks >>calls
echo event >>psgd-7.jsonl
mkdir -p checkpoints-7/step-000000047
exit ${CODE-85}
"""
BUSY_TWICE = """
echo "NAME $*" >>calls
[ "$(cat NAME.asked 2>/dev/null)" = xx ] || { printf x >>NAME.asked; echo "NAME: error: Socket timed out" >&2; exit 1; }
"""
RUN = 'while [ "${1#-}" != "$1" ]; do shift; done; exec "$@"'  # without srun's own options


@pytest.fixture
def job(programs, tmp_path):
    """Runs the script as a job; returns its exit code, its output, and what it called."""

    def run(code=85, restarts=0, launcher="srun", **lines_by_name):
        programs(
            **{
                "scontrol": 'echo "scontrol $*" >>calls',
                "srun": RUN,
                "mpirun": RUN.replace("shift; done", 'shift; done; while [ "$1" != bash ]; do shift; done'),
                "psgd": RANKS,
                "sleep": 'echo "sleep $1" >>calls',
                **lines_by_name,
            }
        )
        script = tmp_path / "script"
        script.write_text(render("long_job", ["--epochs", "9"], venv="", launcher=launcher))
        env = {
            "PATH": os.environ["PATH"],
            "SLURM_SUBMIT_DIR": str(tmp_path),
            "SLURM_JOB_ID": "7",
            "SLURM_NTASKS": "9",
            "SLURM_RESTART_COUNT": str(restarts),
            "CODE": str(code),
            "HOME": str(tmp_path),
        }
        done = subprocess.run(
            ["/bin/bash", str(script)], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
        )
        calls = (tmp_path / "calls").read_text().splitlines()
        return done.returncode, done.stdout + done.stderr, calls

    return run


def test_a_requeue_that_fails_is_tried_again(job):
    code, said, calls = job(scontrol=BUSY_TWICE.replace("NAME", "scontrol"))
    assert code == 85
    assert calls == ["ranks", "scontrol requeue 7", "sleep 1", "scontrol requeue 7", "sleep 2", "scontrol requeue 7"]
    assert said.count("requeued to resume from") == 1
    assert "not requeued" not in said


def test_a_requeue_that_fails_for_good_is_said(job):
    code, said, calls = job(scontrol='echo "scontrol $*" >>calls; echo "scontrol: error: no" >&2; exit 1')
    assert code == 1
    assert calls.count("scontrol requeue 7") == 12
    assert "not requeued: scontrol failed; to do it by hand: scontrol requeue 7" in said


def test_whether_it_was_preempted_is_asked_again(job):
    answer = 'case $1 in show) echo "JobId=7 JobState=RUNNING PreemptTime=2026-01-01T00:00:00" ;; esac'
    code, said, calls = job(143, scontrol=BUSY_TWICE.replace("NAME", "scontrol") + answer)
    assert code == 143
    assert [call for call in calls if call.startswith("scontrol")] == [
        *["scontrol show job --oneliner 7"] * 3,
        "scontrol requeue 7",
    ]
    assert "requeued to resume from" in said


def test_steps_that_do_not_start_are_started_again(job):
    busy = BUSY_TWICE.replace("NAME", "srun") + RUN
    code, said, calls = job(0, restarts=2, srun=busy)
    assert code == 0, said
    kinds = [word for call in calls if (word := call.partition(" ")[0]) in ("srun", "sleep", "ranks")]
    assert kinds == ["srun", "sleep", "srun", "sleep", "srun", "srun", "srun", "ranks"]


@pytest.mark.parametrize(("fails", "code", "ranks"), [("xx", 0, 1), ("xxxxxx", 1, 0)])
def test_ranks_that_srun_did_not_start_are_started_again(job, fails, code, ranks):
    busy = BUSY_TWICE.replace("NAME", "srun").replace("= xx", f"= {fails}") + RUN
    got, said, calls = job(0, srun=busy)
    assert (got, calls.count("ranks")) == (code, ranks)
    assert said.count("the ranks did not start; trying again in") == (2 if ranks else 3)
    assert calls.count("sleep 5") == calls.count("sleep 15") == 1


@pytest.mark.parametrize(
    ("code", "answers", "requeued"),
    [(1, False, True), (137, False, True), (137, True, False), (2, False, False), (4, False, False)],
)
def test_a_job_that_lost_a_node_comes_back(job, code, answers, requeued):
    nodes = f'case "$*" in *--overlap*) exit {0 if answers else 1} ;; esac\n'
    got, said, calls = job(code, srun=nodes + RUN)
    assert (got, "scontrol requeue 7" in calls) == (code, requeued), said
    assert ("a node of the job is lost" in said) == requeued
    assert calls.count("ranks") == 1


@pytest.mark.parametrize("preempted", [False, True])
@pytest.mark.parametrize("warned", [False, True])
def test_a_run_that_is_done_without_its_dead_stays_so(job, preempted, warned):
    answer = 'case $1 in show) echo "JobId=7 JobState=RUNNING PreemptTime=2026-01-01T00:00:00" ;; esac'
    ranks = ('trap "" USR2; kill -USR2 $(cat shell); ' if warned else "") + RANKS
    code, said, calls = job(
        4,
        scontrol='echo "scontrol $*" >>calls; ' + (answer if preempted else ":"),
        srun="echo $PPID >shell\n" + RUN,
        psgd=ranks,
    )
    assert code == 4, said
    assert calls == ["ranks"]


@pytest.mark.parametrize(("answers", "requeued"), [(False, True), (True, False)])
def test_a_run_that_mpirun_takes_for_done_says_itself_whether_it_is(job, answers, requeued):
    nodes = f'case "$*" in *--overlap*) exit {0 if answers else 1} ;; esac\n'
    code, said, calls = job(0, launcher="mpirun", srun=nodes + RUN)
    assert (code, "scontrol requeue 7" in calls) == (1, requeued), said
    assert "the ranks have ended, but the run is not done" in said
    ended = RANKS.replace("echo event", 'echo \'{"event": "end", "time": 1, "requeue": false, "seed": 0}\'')
    code, said, calls = job(0, launcher="mpirun", psgd=ended, srun=nodes + RUN)
    assert code == 0 and calls.count("ranks") == 2 and "not done" not in said


def test_a_run_that_left_for_more_workers_is_not_done(job):
    nodes = 'case "$*" in *--overlap*) exit 1 ;; esac\n'
    phase = RANKS.replace("echo event", 'echo \'{"event": "end", "time": 1, "requeue": true}\'')
    code, said, calls = job(0, launcher="mpirun", psgd=phase, srun=nodes + RUN)
    assert (code, "scontrol requeue 7" in calls) == (1, True), said


def test_a_log_that_begins_anew_is_read_from_its_start(job, tmp_path):
    (tmp_path / "psgd-7.jsonl").write_text("an attempt that had no checkpoint\n" * 9)
    ended = RANKS.replace("echo event >>", 'echo \'{"event": "end", "time": 1, "requeue": false}\' >')
    code, said, _ = job(0, launcher="mpirun", psgd=ended)
    assert code == 0 and "not done" not in said


def test_daemons_of_mpirun_that_did_not_start_are_started_again(job):
    busy = 'echo "daemons" >>calls\n[ "$(grep -c daemons calls)" -gt 1 ] || exit 250\n'
    ended = RANKS.replace("echo event", 'echo \'{"event": "end", "time": 1, "requeue": false, "seed": 0}\'')
    start = RUN.replace("shift; done", 'shift; done; while [ "$1" != bash ]; do shift; done')
    code, said, calls = job(0, launcher="mpirun", psgd=ended, mpirun=busy + start)
    assert code == 0 and [call for call in calls if call != "sleep 5"] == ["daemons", "daemons", "ranks"], said


def test_ranks_that_failed_are_not(job):
    code, said, calls = job(1)
    assert (code, calls.count("ranks")) == (1, 1)
    assert "did not start" not in said
