"""A rank's part of a model: what it tells of itself, and that all of a copy stop together."""

import numpy as np
import pytest

from psgd.collectives.communicator import Communicator
from psgd.config import TrainConfig
from psgd.nn.models import build
from psgd.parallel.mesh import ProcessMesh
from psgd.parallel.pipeline import Pipeline
from psgd.parallel.schedules import catalog
from psgd.training.pieces.model_in_pieces import CutModel


@pytest.mark.ranks(2)
def test_parts_are_those_of_the_whole(comm, tmp_path):
    whole = build("mlp", (1, 8, 8), 10, hidden=16)
    with ProcessMesh(comm, pipe=2) as mesh:
        pipeline = Pipeline(mesh.pipe, whole, (2,), "gpipe", batch=12, microbatches=3)
        model = CutModel(pipeline, Communicator(mesh.tensor), mesh, catalog.make("gpipe", 2, 3), whole.layout)
        assert model.part.name == f"pipe{comm.rank}tensor0" and model.layout is pipeline.layout
        assert model.agreed(comm.rank == 1) and not model.agreed(False)
        bubble = model.bubble()
        assert (bubble["expected"], bubble["microbatches"], bubble["share"]) == (pytest.approx(1 / 4), 3, 0.0)
        assert not model.vector(TrainConfig(seed=3), serves=True).size - pipeline.layout.size
        vector = model.vector(TrainConfig(seed=3), serves=False)
        model.save(tmp_path / "w.npz", vector)
        model.close()
    if comm.rank == 0:
        with np.load(tmp_path / "w.npz") as found:
            for name, each in whole.layout.views(whole.init(3)).items():
                assert np.array_equal(found[name], each)
