"""Who is a rank under SLURM, who is not, and ranks that do not see each other."""

import shlex
import shutil
import sys

import pytest

WHERE = f"{sys.executable} -c 'from psgd.runtime.launcher_env import place; print(f\"place={{place()}}.\")'"


def places(text):
    return sorted(part.partition(".")[0] for part in text.split("place=")[1:])


def test_a_batch_script_and_the_shell_of_salloc_are_no_ranks(login):
    (login.folder / "body.sh").write_text(f"#!/bin/sh\n{WHERE}\nsrun --mpi=none {WHERE}\n")
    number = login.sbatch("--ntasks=3", "--nodes=1", str(login.folder / "body.sh"))
    shell = login.cluster.run("salloc", "--ntasks=3", "sh", "-c", f"{WHERE}; srun --mpi=none {WHERE}").stdout
    for said in (login.done(number), shell):
        assert places(said) == ["(0, 3)", "(1, 3)", "(2, 3)", "None"]


@pytest.mark.skipif(shutil.which("script") is None, reason="needs the program script, for a terminal")
def test_the_shell_of_srun_pty_is_no_rank(login):
    def typed(plugin, tasks, *shell):
        pty = shlex.join(
            ["srun", f"--mpi={plugin}", f"--ntasks={tasks}", "--nodes=1", "--cpus-per-task=2", "--pty", *shell]
        )
        return places(login.cluster.run("script", "-qec", pty, "/dev/null", timeout_s=30).stdout)

    interactive = ("bash", "--norc", "-ic", f"{WHERE}; true")
    assert typed("none", 1, *interactive) == ["None"]
    assert typed(login.mpi, 1, *interactive) == ["None"]
    assert typed(
        "none", 1, "bash", "--norc", "-ic", f"srun --overlap --mpi=none -n2 --cpus-per-task=1 {WHERE}; true"
    ) == [
        "(0, 2)",
        "(1, 2)",
    ]
    assert "(0, 2)" in typed("none", 2, *shlex.split(WHERE))  # no shell: srun --pty psgd train


def test_ranks_that_are_alone_refuse(login):
    program = str(login.venv / "bin" / "psgd")
    four = ["--ntasks=4", "--nodes=2", program]
    for plugin in ("none", "pmi2" if login.mpi == "pmix" else "pmix"):
        done = login.cluster.run("srun", f"--mpi={plugin}", *four, "train", check=False, timeout_s=40)
        assert done.returncode == 2
        assert done.stderr.count("each would train alone") == 1
        assert f"srun --mpi={login.mpi}" in done.stderr
        assert "epoch" not in done.stderr
    done = login.cluster.run("srun", "--mpi=none", *four, "doctor", check=False, timeout_s=40)
    assert done.returncode == 1
    assert done.stdout.count("wrong    ranks  the environment says 4 ranks") == 1


def test_doctor_sees_two_nodes(login):
    words = [f"--mpi={login.mpi}", "--ntasks=4", "--ntasks-per-node=2", str(login.venv / "bin" / "psgd"), "doctor"]
    done = login.cluster.run("srun", *words, timeout_s=60)
    assert "4 ranks on 2 nodes, 1 thread each" in done.stdout
    assert "links in a node" in done.stdout and "links between nodes" in done.stdout
