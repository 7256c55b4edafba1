"""`psgd train --model FILE.py:make --shard 2|3`: the result and the weights of `allreduce`, bit for bit."""

import numpy as np
import pytest
from harness.played_training import played_training

from psgd import training
from psgd.config import configure
from psgd.kernels.errors import AgreedUsageError

torch = pytest.importorskip("torch")
from psgd.training.sharded import sharded_module  # noqa: E402

FILE = """
import torch
from torch import nn


def make(data):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    middle = nn.Linear(33, 17), nn.BatchNorm1d(17), nn.Dropout(0.2)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 33), nn.ReLU(), *middle, nn.Linear(17, data.classes))


def wrapped(data):
    import psgd.torch

    return psgd.torch.wrap(make(data))
"""
SMALL = {"dataset": "digits", "epochs": 2, "batch_size": 29, "optimizer": "adam", "lr": 0.003, "clip_norm": 0.1}
ALIKE = ("train_loss", "test_loss", "test_accuracy", "steps", "samples", "test_f1")


def run(comm, folder, name, **options):
    """Trains; on rank 0 the part of the result that does not depend on time, and the state by name."""
    path = folder / f"{name}.npz"
    result = training.run(configure(strategy="allreduce", save=path, eval_every=0.5, **options), comm)
    comm.Barrier()
    if comm.rank:
        return None
    with np.load(path) as found:
        return {key: result.get(key) for key in ALIKE}, dict(found)


@pytest.mark.ranks(3, timeout=180)
def test_a_module_from_a_file_trains_as_by_allreduce(comm, tmp_path):
    """Evaluations while it trains, a checkpoint resumed in another stage, and steps that are accumulated."""
    file = comm.bcast(tmp_path) / "model.py"
    if comm.rank == 0:
        file.write_text(FILE)
    comm.Barrier()
    options = {**SMALL, "model": f"{file}:make"}
    expected = run(comm, tmp_path, "whole", **options)
    cases = [({"shard": 3},), ({"shard": 3}, {"shard": 2}), ({}, {"shard": 3})]
    for number, case in enumerate(cases):
        saved = {"checkpoint_dir": comm.bcast(tmp_path) / str(number), "checkpoint_every": 17} if len(case) > 1 else {}
        for turn, own in enumerate(case):
            first = {"epochs": 1} if turn + 1 < len(case) else {}
            found = run(comm, tmp_path, "sharded", **{**options, **own, **saved, **first, "resume": turn > 0})
        if comm.rank == 0:
            assert found[0] == expected[0] and expected[0]["steps"] > 20, case
            assert list(found[1]) == list(expected[1])
            for name in expected[1]:
                np.testing.assert_array_equal(found[1][name], expected[1][name], err_msg=f"{case} {name}")
    once = {**options, "epochs": 1, "accumulate": 2}
    several = [run(comm, tmp_path, "sharded", **once, shard=stage) for stage in (2, 3)]
    if comm.rank == 0:
        assert several[0][0] == several[1][0]
    with pytest.raises(AgreedUsageError, match="expected a module for --mesh or --shard that is not wrapped"):
        run(comm, tmp_path, "none", **{**options, "shard": 3, "model": f"{file}:wrapped"})


@pytest.mark.ranks(3, timeout=120)
def test_on_gpus_that_are_played(comm, tmp_path):
    """All of a run but what only a GPU has: evaluations in which all take part, the last batch, what is saved."""
    file = comm.bcast(tmp_path) / "model.py"
    if comm.rank == 0:
        file.write_text(FILE)
    comm.Barrier()
    options = {**SMALL, "model": f"{file}:make"}
    expected = run(comm, tmp_path, "whole", **options)
    with played_training() as patch:
        patch.setattr(sharded_module, "_place", lambda config: torch.device("cpu"))
        patch.setattr("psgd.training.torch_cuda_backend._AT_ONCE", 70)  # evaluations of several passes
        for shard in (2, 3):
            found = run(comm, tmp_path, "sharded", **options, shard=shard, device="cuda")
            if comm.rank == 0:
                for key in ("train_loss", "test_accuracy", "steps", "samples"):
                    assert found[0][key] == expected[0][key], (shard, key)
                assert found[0]["test_loss"] == pytest.approx(expected[0]["test_loss"], rel=1e-5)
                for name in expected[1]:
                    np.testing.assert_array_equal(found[1][name], expected[1][name], err_msg=f"{shard} {name}")
