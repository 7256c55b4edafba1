"""`psgd slurm submit` against an sbatch and an scontrol of our own: what they are given, and how a job is followed."""

import shutil
from pathlib import Path

import pytest

from psgd.kernels.errors import UsageError
from psgd.launch.slurm import queries, submit
from psgd.launch.slurm.queries import Job


@pytest.fixture
def slurm(programs, monkeypatch):
    """Makes programs of SLURM; jobs are looked at often."""
    monkeypatch.setattr(submit, "POLL_S", 0.01)
    return programs


def test_the_script_is_handed_over_and_the_number_returned(slurm, tmp_path):
    slurm(sbatch='echo "$@" >words; cat >script; echo "123;cluster"')
    assert submit.submit("#!/bin/bash\ntrue\n") == Job("123", "cluster")
    assert (tmp_path / "words").read_text() == "--parsable\n"
    assert (tmp_path / "script").read_text() == "#!/bin/bash\ntrue\n"


def test_a_refusal_is_told_in_sbatchs_words(slurm):
    slurm(sbatch="echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    with pytest.raises(UsageError, match="invalid partition specified: x"):
        submit.submit("")


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (
            "sbatch: error: res_nsearch error: Unknown host\nsbatch: error: fetch_config: no\nsbatch: fatal: No source",
            "No source",
        ),
        (
            "sbatch: warning: old\nsbatch: error: ----\nsbatch: error: no such account\nsbatch: error: failed",
            "no such account",
        ),
        ("not for you\ngo away", "not for you"),
        ("", "exit code 1"),
    ],
)
def test_of_a_long_refusal_one_line_is_told(slurm, said, kept):
    slurm(sbatch=f"printf '{said}' >&2; exit 1")
    with pytest.raises(UsageError, match=f"^sbatch: {kept}$"):
        submit.submit("")


def test_a_program_that_cannot_be_run_or_is_killed(slurm, monkeypatch):
    slurm(sbatch="kill -9 $$")
    with pytest.raises(UsageError, match=r"^sbatch: ended by signal 9$"):
        submit.submit("")
    slurm(sbatch="")
    Path(shutil.which("sbatch")).write_text("#!/no/such/program\n")
    monkeypatch.setenv("PATH", str(Path(shutil.which("sbatch")).parent))
    with pytest.raises(UsageError, match=r"^sbatch: .*sbatch cannot be run: No such file or directory$"):
        submit.submit("")


def test_without_slurm(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="sbatch: not found on PATH"):
        submit.submit("")


# A job that waits, runs, and ends; its log grows at each look.
LIFE = """
n=$(cat turn 2>/dev/null || echo 0); echo $((n + 1)) >turn
[ "$3" = 7 ] || exit 1
case $n in
0) echo "JobId=7 JobState=PENDING ExitCode=0:0 StdOut=$PWD/log" ;;
1) echo "a line" >log; echo "JobId=7 JobState=RUNNING ExitCode=0:0 StdOut=$PWD/log" ;;
2) echo "another" >>log; echo "JobId=7 JobState=RUNNING ExitCode=0:0 StdOut=$PWD/log" ;;
3) echo "the last" >>log; echo "JobId=7 JobState=%s ExitCode=%s StdOut=$PWD/log" ;;
esac
"""


@pytest.mark.parametrize(
    ("state", "said", "code"),
    [
        ("COMPLETED", "0:0", 0),
        ("FAILED", "3:0", 3),
        ("FAILED", "0:9", 137),
        ("TIMEOUT", "0:0", 1),
        ("CANCELLED", "0:15", 143),
        ("NODE_FAIL", "1:0", 1),
        ("PREEMPTED", "0:0", 1),
        ("OUT_OF_MEMORY", "0:125", 253),
        ("DEADLINE", "0:0", 1),
        ("BOOT_FAIL", "0:0", 1),
        ("FAILED", "256:0", 1),
        ("FAILED", "", 1),
    ],
)
def test_a_job_is_followed_to_its_end(slurm, capfdbinary, state, said, code):
    slurm(scontrol=LIFE % (state, said))
    assert submit.follow(Job("7")) == code
    out, err = capfdbinary.readouterr()
    assert out == b"a line\nanother\nthe last\n"
    assert [line.split()[-1] for line in err.decode().splitlines()] == ["pending", "running", state.lower()]


@pytest.mark.parametrize("scontrol", ["exit 1", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"])
def test_a_job_that_nobody_knows_is_an_error(slurm, capsys, scontrol):
    slurm(scontrol=f"echo >>asked; {scontrol}")
    assert submit.follow(Job("7")) == 1
    assert "job 7: not known" in capsys.readouterr().err


BUSY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
# A controller that answers the third, sixth, ... time. The job has ended by the ninth.
NOW_AND_THEN = f"""
n=$(cat turn 2>/dev/null || echo 0); n=$((n + 1)); echo $n >turn
[ $((n % 3)) = 0 ] || {{ echo "{BUSY}" >&2; exit 1; }}
case $n in
3) echo "JobId=7 JobState=PENDING ExitCode=0:0 StdOut=$PWD/a log" ;;
6) echo "a line" >"a log"; echo "JobId=7 JobState=RUNNING ExitCode=0:0 StdOut=$PWD/a log" ;;
9) echo "the last" >>"a log"; echo "JobId=7 JobState=COMPLETED ExitCode=0:0 StdOut=$PWD/a log" ;;
esac
"""


def test_a_busy_controller_is_asked_again(slurm, capfd):
    slurm(scontrol=NOW_AND_THEN, sacct="exit 1")
    assert submit.follow(Job("7")) == 0
    out, err = capfd.readouterr()
    assert out == "a line\nthe last\n"
    assert [line.split()[-1] for line in err.splitlines()] == ["pending", "running", "completed"]


def test_a_controller_that_hangs_is_asked_again(slurm, monkeypatch, capfd):
    monkeypatch.setattr(queries, "TIMEOUT_S", 0.3)
    slurm(scontrol="[ -e turn ] && { echo JobId=7 JobState=FAILED ExitCode=4:0; exit; }; echo >turn; sleep 9")
    assert submit.follow(Job("7")) == 4


def test_a_controller_that_never_answers_is_given_up(slurm, tmp_path, capfd):
    slurm(scontrol=f"echo >>asked; echo '{BUSY}' >&2; exit 1", sacct="echo 'RUNNING|0:0'")
    assert submit.follow(Job("7")) == 1
    busy, last = capfd.readouterr().err.splitlines()
    assert busy == f"psgd: job 7: no answer ({BUSY}), asking again"
    assert last.startswith(f"psgd: job 7: not known ({BUSY}). `squeue --me` shows")
    assert len((tmp_path / "asked").read_text().splitlines()) == submit.PATIENCE


@pytest.mark.parametrize("reason", [BUSY, "slurm_load_jobs error: Invalid job id specified"])
def test_the_accounts_remember_a_job_that_the_controller_has_forgotten(slurm, tmp_path, capfd, reason):
    (tmp_path / "log").write_text("all of it\n")
    running = 'echo >turn; echo "JobId=7 JobState=RUNNING ExitCode=0:0 StdOut=$PWD/log"'
    slurm(scontrol=f"[ -e turn ] || {{ {running}; exit; }}; echo '{reason}' >&2; exit 1", sacct="echo 'FAILED|5:0'")
    assert submit.follow(Job("7")) == 5
    out, err = capfd.readouterr()
    assert out == "all of it\n"
    assert err.splitlines()[-1].endswith("failed")


def test_a_held_job_is_waited_for(slurm, capfd):
    looks = """
n=$(cat turn 2>/dev/null || echo 0); echo $((n + 1)) >turn
set -- SPECIAL_EXIT REQUEUE_HOLD RUNNING COMPLETING COMPLETED
shift $n
echo "JobId=7 JobState=$1 ExitCode=0:0"
"""
    slurm(scontrol=looks)
    assert submit.follow(Job("7")) == 0
    err = capfd.readouterr().err
    assert err.count("(held: `scontrol release 7` lets it run)") == 2


def test_one_that_another_cluster_runs_has_ended_here(slurm, capfd):
    slurm(scontrol="echo JobId=7 JobState=REVOKED ExitCode=0:0")
    assert submit.follow(Job("7", "lab")) == 1
    assert "revoked (it runs on another cluster)" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("sbatch", "message"),
    [
        ("true", "expected the job's number, got nothing; `squeue --me`"),
        ("echo welcome; echo", "expected the job's number, got 'welcome'"),
        ("echo 'sbatch: Job 9 to start at noon' >&2", "expected the job's number, got Job 9 to start at noon"),
        (
            "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1",
            "Socket timed out on send/recv operation; `squeue --me` shows whether the job was queued anyway",
        ),
        ("printf '\\377\\n' >&2; exit 3", "exit code 3"),
    ],
)
def test_an_answer_without_a_job_is_one_error(slurm, sbatch, message):
    slurm(sbatch=f"cat >/dev/null; {sbatch}")
    with pytest.raises(UsageError) as error:
        submit.submit("#!/bin/bash\n")
    assert message in str(error.value)


def test_the_number_counts_whatever_the_exit_code(slurm):
    slurm(sbatch="cat >/dev/null; echo 'sbatch: a word to the user' >&2; echo 123; exit 9")  # of a job, with --wait
    assert submit.submit("\udcff") == Job("123")
