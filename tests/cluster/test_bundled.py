"""The bundled scripts, edited as a user would, on a cluster of two nodes."""

import json
import re

import pytest

SMALL = "--dataset digits --model softmax --epochs 10"


def results(folder, pattern):
    """The last line of each JSON log: a run's result."""
    return [json.loads(path.read_text().splitlines()[-1]) for path in sorted(folder.glob(pattern))]


def test_they_train(login, cut_job):
    """All at once: what takes the time is the start of Python on two cores."""
    servers = login.sbatch(login.edit("cpu_parameter_server", SMALL, nodes="2", ntasks="3"))
    options = "--strategy decentralized --dataset digits --epochs 10"
    peers = login.sbatch(login.edit("decentralized_slow_network", options, nodes="2", ntasks="2", cpus_per_task="1"))
    words = ["--launcher", "mpirun", "--workers", "1", "--nodes", "2"]
    text = login.psgd("slurm", "render", "cpu_parameter_server", *words).stdout
    launched = login.sbatch(login.edit("cpu_parameter_server", SMALL, text))
    trials = "(\n    '--lr 0.1'\n    '--lr 0.2 --seed 5'\n)"
    array = login.sbatch(login.edit("array", SMALL, ntasks="2", TRIALS=trials, array="0-1", job_name="array"))

    for number, workers in ((servers, 2), (peers, 2), (launched, 1)):
        said = login.done(number, timeout_s=100)
        assert f"{workers} worker" in said
        assert "on 2 nodes" in said
        (result,) = results(login.folder, f"psgd-{number}.jsonl")
        assert result["test_accuracy"] > 0.95
        assert result["workers"] == workers
        assert "\r" not in said
    for task in range(2):
        login.done(f"{array}_{task}")
    assert sorted(path.name for path in login.folder.glob("array-*.out")) == [f"array-{array}-{k}.out" for k in (0, 1)]
    found = results(login.folder, f"psgd-{array}-*.jsonl")
    assert [(one["lr"], one["seed"]) for one in found] == [(0.1, 0), (0.2, 5)]
    assert min(one["test_accuracy"] for one in found) > 0.95


def test_a_node_keeps_what_it_compiled(login):
    code = "echo $(uname -n) $NUMBA_CACHE_DIR $CUPY_CACHE_DIR $OMP_NUM_THREADS $NUMBA_NUM_THREADS $PYTHONSAFEPATH $PWD"
    program = login.folder / "bin" / "psgd"
    program.parent.mkdir()
    (program.parent / "activate").write_text(f"PATH={program.parent}:$PATH\n")
    program.write_text(f"#!/bin/sh\n{code}\n")
    program.chmod(0o755)
    path = login.edit(
        "decentralized_slow_network", "", nodes="2", ntasks="2", VENV=str(program.parent.parent), MPI="none"
    )
    said = login.done(login.sbatch(path, env={"XDG_CACHE_HOME": "/some/cache", "NUMBA_CACHE_DIR": None}))
    caches = [
        f"host{k} /some/cache/psgd/host{k}/numba /some/cache/psgd/host{k}/cupy 4 4 1 {login.folder}" for k in (0, 1)
    ]
    assert sorted(line for line in said.splitlines() if line.startswith("host")) == caches


@pytest.mark.parametrize("kind", ["gpu_allreduce", "easgd_host_master"])
def test_gpu_scripts_are_accepted(login, kind):
    path = login.edit(kind, "--epochs 1")
    said = login.cluster.run("sbatch", "--test-only", path).stderr
    nodes = {"gpu_allreduce": "host[0-1]", "easgd_host_master": "host[0-1]|host0|host1"}[kind]
    assert re.search(
        r"Job \d+ to start at .* using \d+ processors on nodes (" + re.escape(nodes).replace(r"\|", "|") + ")", said
    )
    refused = login.cluster.run("sbatch", "--test-only", "--gpus-per-node=5", path, check=False)
    assert refused.returncode != 0
    assert "not available" in refused.stderr
