"""A backend of a module in pieces, on one rank, beside the module."""

import numpy as np
import pytest
from mpi4py import MPI

import psgd
from psgd.data import load
from psgd.data.normalization import validate

torch = pytest.importorskip("torch")
from psgd.training.pieces.module_backend import ModuleBackend  # noqa: E402 -- where PyTorch is

nn = torch.nn


@pytest.mark.ranks(1)
def test_gradients_are_the_modules_and_preparing_changes_nothing(comm):
    dataset = load("digits")
    statistics = validate(dataset)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.BatchNorm1d(9), nn.Linear(9, 10))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with psgd.torch.pipeline(module, MPI.COMM_SELF, cuts=(), sample=dataset.sample_shape, batch=20) as stages:
        backend = ModuleBackend(stages, MPI.COMM_SELF, dataset, statistics, 20)
        params = stages.params
        backend.prepare(params)
        assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
        assert not stages.grads.any() and all(part.training for part in module.modules())
        rows, found = np.arange(20), []
        rows.flags.writeable = False
        for _ in range(2):
            backend.begin(0, 0, 0)
            found.append((backend.gradient(rows), stages.grads.copy()))
        assert found[0][0] == found[1][0] and np.array_equal(found[0][1], found[1][1]), "the second added to the first"
        assert found[0][1].any()
        other = params.copy(), np.empty_like(params)
        backend.bind(*other)
        assert stages.params.ctypes.data == other[0].ctypes.data
        assert backend.gradient(rows) == found[0][0] and np.array_equal(other[1], found[0][1])
