"""`psgd slurm submit` on a cluster of two nodes."""

import re

from harness import mpi

DIGITS = ("--dataset", "digits", "--epochs", "10")


def test_from_the_login_node_to_the_result(login):
    login.folder = login.folder / "my jobs" / "Run A=1  b"  # its log's path is not cut
    login.folder.mkdir(parents=True)
    words = ["--workers", "3", "--nodes", "2", "--venv", str(login.venv), "--wait"]
    done = login.psgd("slurm", "submit", "cpu_parameter_server", *words, "--", *DIGITS)
    number, *log = done.stdout.splitlines()
    job = login.cluster.job(number)
    assert (job["JobState"], job["NumNodes"], job["NumTasks"]) == ("COMPLETED", "2", "4")
    assert "\n".join(log).strip() == login.cluster.log(job).strip()
    assert float(re.search(r"accuracy +([\d.]+) on the test", done.stdout)[1]) > 0.95
    assert "1 server, 3 workers" in done.stdout


def test_a_wrong_plugin_is_refused(login):
    words = ["--workers", "3", "--venv", str(login.venv), "--mpi", "none", "--wait"]
    done = login.psgd("slurm", "submit", "cpu_parameter_server", *words, "--", *DIGITS, check=False)
    assert done.returncode in (2, 143)  # rank 0's, or of those that srun ended then
    assert done.stdout.count("each would train alone") == 1
    assert f"--mpi={'pmix' if mpi.is_open_mpi() else 'pmi2'}" in done.stdout
    assert "accuracy" not in done.stdout


def test_sbatchs_refusal_is_told(login):
    done = login.psgd("slurm", "submit", "cpu_parameter_server", "--partition", "nowhere", check=False)
    assert done.returncode == 2
    assert "invalid partition" in done.stderr
    assert done.stdout == ""
