"""`psgd slurm submit` against an sbatch and an scontrol of our own: what they are given, and how a job is followed."""

import pytest

from psgd.kernels.errors import UsageError
from psgd.launch.slurm import submit


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Makes programs of these names that run lines of shell, first on PATH."""

    def make(**programs):
        for name, lines in programs.items():
            path = tmp_path / name
            path.write_text(f"#!/bin/sh\ncd {tmp_path}\n{lines}\n")
            path.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(submit, "POLL_S", 0.01)
    return make


def test_the_script_is_handed_over_and_the_number_returned(slurm, tmp_path):
    slurm(sbatch='echo "$@" >words; cat >script; echo "123;cluster"')
    assert submit.submit("#!/bin/bash\ntrue\n") == "123"
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


def test_without_slurm(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="sbatch: not found on PATH"):
        submit.submit("")


# A job that waits, runs, and ends; its log grows at each look.
LIFE = """
n=$(cat turn 2>/dev/null || echo 0); echo $((n + 1)) >turn
[ "$4" = 7 ] || exit 1
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
    ],
)
def test_a_job_is_followed_to_its_end(slurm, capfdbinary, state, said, code):
    slurm(scontrol=LIFE % (state, said))
    assert submit.follow("7") == code
    out, err = capfdbinary.readouterr()
    assert out == b"a line\nanother\nthe last\n"
    assert [line.split()[-1] for line in err.decode().splitlines()] == ["pending", "running", state.lower()]


def test_a_job_that_nobody_knows_is_an_error(slurm, capsys):
    slurm(scontrol="exit 1")
    assert submit.follow("7") == 1
    assert "job 7: not known" in capsys.readouterr().err
