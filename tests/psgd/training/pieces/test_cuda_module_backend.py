"""`--device cuda` with a PyTorch module in pieces, against the same runs with the whole module on one GPU."""

import numpy as np
import pytest
from harness.device import cupy
from mpi4py import MPI

from psgd import training
from psgd.config import TrainConfig

pytest.importorskip("torch")

NET = """
import torch
from torch import nn


def mlp():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 24), nn.ReLU(inplace=True), nn.Linear(24, 20), nn.Tanh(), nn.Linear(20, 10)
    )


def norms():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 10)).double()
"""
COMMON = {
    "dataset": "digits",
    "strategy": "allreduce",
    "device": "cuda",
    "epochs": 1,
    "batch_size": 60,
    "lr": 0.1,
    "eval_every": 0.5,
}


def run(comm, folder, name, function, **options):
    """Trains; returns the result and the weights by name, both on rank 0; None elsewhere."""
    saved = folder / f"{name}.npz"
    result = training.run(TrainConfig(model=f"{folder}/net.py:{function}", save=saved, **COMMON | options), comm)
    if comm.rank:
        return None, None
    with np.load(saved) as found:
        return result, dict(found)


@pytest.mark.gpu
@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("mesh", "function", "options", "exactly"),
    [
        ("pipe=2", "mlp", {"microbatches": 1, "optimizer": "momentum", "cut": "3"}, True),
        ("pipe=2", "mlp", {"clip_norm": 0.5, "data_device": "cpu"}, False),
        ("pipe=2", "norms", {"microbatches": 1, "cut": "3"}, True),
        ("tensor=2", "mlp", {"optimizer": "adam", "lr": 0.01}, False),
    ],
)
def test_a_module_in_pieces_learns_what_a_whole_one_learns(comm, tmp_path, mesh, function, options, exactly):
    cupy()
    if comm.rank == 0:
        (tmp_path / "net.py").write_text(NET)
    comm.Barrier()
    result, weights = run(comm, tmp_path, "cut", function, mesh=mesh, **options)
    few = comm.Split(0 if comm.rank == 0 else MPI.UNDEFINED, comm.rank)
    if comm.rank == 0:
        alone = {name: value for name, value in options.items() if name not in ("microbatches", "cut")}
        expected, wanted = run(few, tmp_path, "whole", function, **alone)
        assert list(weights) == list(wanted)
        for name in weights:
            assert weights[name].dtype == wanted[name].dtype
            if exactly:
                assert np.array_equal(weights[name], wanted[name]), name
            else:
                np.testing.assert_allclose(weights[name], wanted[name], rtol=1e-3, atol=1e-4, err_msg=name)
        assert result["samples"] == expected["samples"]
        assert result["test_accuracy"] == pytest.approx(expected["test_accuracy"], abs=0.01)
        assert result["test_accuracy"] > 0.3
        assert result["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-3)
        few.Free()
    comm.Barrier()


@pytest.mark.gpu
@pytest.mark.ranks(2)
@pytest.mark.parametrize("function", ["mlp", "norms"])
@pytest.mark.parametrize(("schedule", "microbatches"), [("pipedream", 1), ("pipedream-2bw", 4)])
def test_steps_without_flushes_are_those_of_the_host(comm, tmp_path, schedule, microbatches, function):
    cupy()
    if comm.rank == 0:
        (tmp_path / "net.py").write_text(NET)
    comm.Barrier()
    options = {"mesh": "pipe=2", "cut": "3", "pipe_schedule": schedule, "microbatches": microbatches, "lr": 0.05}
    result, weights = run(comm, tmp_path, "gpu", function, **options)
    expected, wanted = run(comm, tmp_path, "cpu", function, **options | {"device": "cpu"})
    if comm.rank == 0:
        assert list(weights) == list(wanted) and result["samples"] == expected["samples"]
        for name, values in weights.items():
            np.testing.assert_allclose(values, wanted[name], rtol=1e-2, atol=1e-3, err_msg=name)
        assert result["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-2)
        assert result["test_accuracy"] == pytest.approx(expected["test_accuracy"], abs=0.01)
    comm.Barrier()
