"""`--device cuda --shard 2|3` with a PyTorch module: the result and the state of `allreduce` there, bit for bit.

`test_sharded_module` has the same with a GPU that is played.
"""

import numpy as np
import pytest
from harness.device import cupy

from psgd import training
from psgd.config import configure

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

FILE = """
import torch
from torch import nn


def make(data):
    torch.manual_seed(1)
    middle = nn.Linear(96, 64), nn.BatchNorm1d(64), nn.Dropout(0.2)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), *middle, nn.Linear(64, data.classes))


def nowhere(data):
    with torch.device("meta"):
        return make(data)
"""
SMALL = {"dataset": "digits", "epochs": 2, "batch_size": 29, "optimizer": "adam", "lr": 0.003, "clip_norm": 0.1}
ALIKE = ("train_loss", "test_loss", "test_accuracy", "steps", "samples")


def run(comm, folder, name, **options):
    """Trains; on rank 0 the part of the result that does not depend on time, and the state by name."""
    path = folder / f"{name}.pt"
    result = training.run(configure(strategy="allreduce", device="cuda", save=path, eval_every=0.5, **options), comm)
    comm.Barrier()
    return None if comm.rank else ({key: result[key] for key in ALIKE}, torch.load(path))


def same(found, expected, what):
    assert found[0] == expected[0], what
    assert list(found[1]) == list(expected[1])
    for name, tensor in expected[1].items():
        assert tensor.device.type == "cpu" and torch.equal(found[1][name], tensor), (what, name)


@pytest.mark.ranks(2, timeout=240)
@pytest.mark.parametrize(("peers", "data_device"), [("1", "auto"), ("0", "cpu")])
def test_a_module_from_a_file_trains_as_by_allreduce(comm, tmp_path, peers, data_device):
    cupy()
    file = comm.bcast(tmp_path) / "model.py"
    if comm.rank == 0:
        file.write_text(FILE)
    comm.Barrier()
    options = {**SMALL, "model": f"{file}:make", "data_device": data_device}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PSGD_PEERS", peers)
        patch.setattr("psgd.training.torch_cuda_backend._AT_ONCE", 70)  # evaluations of several passes
        expected = run(comm, tmp_path, "whole", **options)
        for stage in (2, 3):
            found = run(comm, tmp_path, "sharded", shard=stage, **options)
            if comm.rank == 0:
                same(found, expected, stage)
        saved = {"checkpoint_dir": comm.bcast(tmp_path) / "saved", "checkpoint_every": 10}
        run(comm, tmp_path, "first", **{**options, "epochs": 1}, **saved, shard=3)
        found = run(comm, tmp_path, "second", **options, **saved, resume=True)
        if comm.rank == 0:
            same(found, expected, "resumed")


@pytest.mark.ranks(2, timeout=120)
def test_a_module_that_nobody_has_as_a_whole(comm, tmp_path):
    cupy()
    file = comm.bcast(tmp_path) / "model.py"
    if comm.rank == 0:
        file.write_text(FILE)
    comm.Barrier()
    options = {**SMALL, "model": f"{file}:nowhere", "epochs": 4}
    two, three = (run(comm, tmp_path, "sharded", shard=stage, **options) or (None, None) for stage in (2, 3))
    if comm.rank == 0:
        same(three, two, "nowhere")
        assert np.isfinite(two[0]["train_loss"]) and two[0]["test_accuracy"] > 0.8
