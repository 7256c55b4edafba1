"""What SLURM's programs print, with what sites and versions add to it, is read as what it means."""

import pytest

from psgd.launch.slurm import queries
from psgd.launch.slurm.queries import Job, Record


@pytest.mark.parametrize(
    ("answer", "job"),
    [
        ("4711\n", Job("4711")),
        ("4711;cluster\n", Job("4711", "cluster")),
        ("4711;hpc-2.site\r\n", Job("4711", "hpc-2.site")),
        ("Submitted batch job 4711\n", Job("4711")),
        ("Submitted batch job 4711 on cluster lab\n", Job("4711", "lab")),
        ("**** Welcome to HPC ****\nMaintenance on 2026-12-01\n\n  4711  \n", Job("4711")),
        ("4711\nYour project has used 12 % of its hours.\n", Job("4711")),
        ("2026\n4711\n", Job("4711")),
        ("4711;lab\n42\n", Job("4711", "lab")),
        ("\x1b[1;32mready\x1b[0m\n\x1b[32m4711\x1b[0m\n", Job("4711")),
        ("12 jobs are ahead of you\n4711", Job("4711")),
        ("", None),
        ("\n\n", None),
        ("\x1b]0;a title\x074711;lab\n", Job("4711", "lab")),
        ("\x1b[?25h4711\x1b[0m\r\n", Job("4711")),
        ("sbatch: Submitted batch job 4711\n", Job("4711")),
        ("0\n", None),
        ("4711 4712\n", None),
        ("-4711\n", None),
        ("4711;\n", None),
        ("sbatch: job 4711 would start tomorrow", None),
    ],
)
def test_one_reading_of_sbatchs_answer(answer, job):
    assert queries.submitted(answer) == job


MANY_LINES = """JobId=7 JobName=psgd
   UserId=me(1000) GroupId=us(1000) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=3:0
   NodeList=host0 TRES=cpu=1,mem=1000M,node=1,billing=1
   Command=/home/me/my jobs/JobState=FAILED ExitCode=9:9
   WorkDir=/home/me/my jobs
   StdErr=/home/me/my jobs/Run A=1  b.out
   StdIn=/dev/null
   StdOut=/home/me/my jobs/Run A=1  b.out
   Power=
"""
ONE_LINE = (
    "JobId=7 JobName=psgd JobState=RUNNING Reason=None Requeue=0 ExitCode=3:0 Command=(null) "
    "WorkDir=/home/me/my jobs StdErr=/home/me/my jobs/a  b.out StdIn=/dev/null "
    "StdOut=/home/me/my jobs/a  b.out Power=\n"
)


@pytest.mark.parametrize(
    ("said", "log"),
    [
        (MANY_LINES, "/home/me/my jobs/Run A=1  b.out"),
        ("Note: maintenance = soon\n" + MANY_LINES, "/home/me/my jobs/Run A=1  b.out"),
        (ONE_LINE, "/home/me/my jobs/a  b.out"),
        (MANY_LINES + "   Comment=a JobState=FAILED ExitCode=9:9\n", "/home/me/my jobs/Run A=1  b.out"),
        (MANY_LINES.replace("=psgd", "=a JobState=FAILED"), "/home/me/my jobs/Run A=1  b.out"),
    ],
)
def test_a_path_with_blanks_is_whole(programs, said, log):
    programs(scontrol=f"cat <<'END'\n{said}END")
    assert queries.show(Job("7")) == Record("RUNNING", "3:0", log)


def test_the_cluster_is_asked(programs, tmp_path):
    programs(
        scontrol='echo "$@" >scontrol.words; echo "JobId=7 JobState=PENDING"',
        sacct='echo "$@" >sacct.words; echo "PENDING|0:0"',
    )
    for job, flags in ((Job("7", "lab"), "-M lab "), (Job("7"), "")):
        assert queries.show(job).state == queries.account(job).state == "PENDING"
        assert (tmp_path / "scontrol.words").read_text() == f"{flags}show job 7\n"
        assert (tmp_path / "sacct.words").read_text().startswith(f"{flags}--noheader")


@pytest.mark.parametrize(
    ("scontrol", "problem", "unknown"),
    [
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", "Invalid job id", True),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", "Unable to contact", False),
        ("exit 1", "exit code 1", False),
        ("kill -9 $$", "exit code -9", False),
        ("true", "no JobState", False),
        ("echo 'JobId=8 JobState=COMPLETED'", "no JobState", False),
        ("printf 'JobId=7 \\377'", "no JobState", False),
        ("sleep 5", "did not answer", False),
        (None, "No such file", False),
    ],
)
def test_what_is_no_answer(programs, monkeypatch, scontrol, problem, unknown):
    monkeypatch.setattr(queries, "TIMEOUT_S", 0.5)
    programs(**({} if scontrol is None else {"scontrol": scontrol}))
    record = queries.show(Job("7"))
    assert (record.state, record.unknown) == ("", unknown)
    assert problem in record.problem


@pytest.mark.parametrize(
    ("said", "record"),
    [
        ("COMPLETED|0:0", Record("COMPLETED", "0:0")),
        ("old news\nCANCELLED by 1000|0:15\n", Record("CANCELLED by 1000", "0:15")),
        ("", Record(problem="sacct does not know it")),
    ],
)
def test_the_accounts_record(programs, said, record):
    programs(sacct=f"printf '{said}'")
    assert queries.account(Job("7")) == record
