"""A rank's part of a module as what a run trains, on one rank."""

import numpy as np
import pytest

import psgd
from psgd.collectives.communicator import Communicator
from psgd.config import TrainConfig
from psgd.parallel.mesh import ProcessMesh
from psgd.parallel.schedules import catalog

torch = pytest.importorskip("torch")
from psgd.training.pieces.module_part import CutModule  # noqa: E402 -- where PyTorch is

nn = torch.nn


@pytest.mark.ranks(1)
def test_its_vector_is_the_modules_and_its_file_has_the_whole_state(comm, tmp_path):
    module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    names = list(module.state_dict())
    with ProcessMesh(comm, pipe=1) as mesh:
        part = psgd.torch.pipeline(module, mesh.pipe, cuts=(), sample=(6,), batch=4)
        model = CutModule(part, Communicator(mesh.tensor), mesh, catalog.make("1f1b", 1, 1), names)
        vector = model.vector(TrainConfig(), serves=False)
        assert vector.ctypes.data == part.params.ctypes.data and model.connected(vector) is part
        assert model.layout is part.layout and model.bubble() is None
        vector[:] = np.arange(vector.size)
        model.save(tmp_path / "w.npz", vector)
        model.close()
    with np.load(tmp_path / "w.npz") as found:
        assert list(found) == names
        for name, tensor in module.state_dict().items():
            assert np.array_equal(found[name], tensor.numpy()), name
