"""`psgd train --shard 2|3 --mesh` on real ranks: the result and the weights of the unsharded mesh, bit for bit."""

import numpy as np
import pytest
from harness.played_training import played_training

from psgd import training
from psgd.config import configure
from psgd.parallel.sharded import units

SMALL = {
    **{"dataset": "digits", "epochs": 1, "batch_size": 31, "optimizer": "adam", "lr": 0.003, "eval_every": 0.5},
    **{"hidden": 17, "clip_norm": 0.1},
}
ALIKE = ("train_loss", "test_loss", "test_accuracy", "steps", "samples", "test_f1")


def run(comm, folder, name, **options):
    """Trains; on rank 0 the part of the result that does not depend on time, and the weights by name."""
    path = folder / f"{name}.npz"
    result = training.run(configure(strategy="allreduce", save=path, **options), comm)
    if comm.rank:
        return None
    with np.load(path) as found:
        return {key: result.get(key) for key in ALIKE}, dict(found)


@pytest.mark.ranks(4, timeout=180)
def test_stages_2_and_3_of_a_model_in_pieces(comm, tmp_path):
    """Evaluations, clipping over all pieces, a last batch with fewer microbatches, weights gathered for the file."""
    before, units.SMALLEST_BYTES = units.SMALLEST_BYTES, 256
    try:
        for mesh, microbatches in (("pipe=2,data=2", 4), ("tensor=2,data=2", 1)):
            options = {**SMALL, "mesh": mesh, "microbatches": microbatches}
            expected = run(comm, tmp_path, "whole", **options)
            for stage in (2, 3):
                found = run(comm, tmp_path, "sharded", shard=stage, **options)
                if comm.rank == 0:
                    assert found[0] == expected[0], (mesh, stage)
                    assert expected[0]["steps"] > 20
                    assert list(found[1]) == list(expected[1])
                    for name in expected[1]:
                        np.testing.assert_array_equal(found[1][name], expected[1][name])
    finally:
        units.SMALLEST_BYTES = before


@pytest.mark.ranks(4, timeout=180)
def test_on_gpus_that_are_played(comm, tmp_path):
    """All of a run but what only a GPU has: its evaluations, the last batch, what is saved."""
    before, units.SMALLEST_BYTES = units.SMALLEST_BYTES, 256
    try:
        with played_training():
            for mesh, cut in (("pipe=2,data=2", "2"), ("tensor=2,data=2", None)):
                options = {**SMALL, "mesh": mesh, "cut": cut, "microbatches": 4 if cut else 1, "device": "cuda"}
                expected = run(comm, tmp_path, "whole", **options)
                for stage in (2, 3):
                    found = run(comm, tmp_path, "sharded", shard=stage, **options)
                    if comm.rank == 0:
                        assert found[0] == expected[0], (mesh, stage)
                        assert expected[0]["steps"] > 20
                        for name in expected[1]:
                            np.testing.assert_array_equal(found[1][name], expected[1][name])
    finally:
        units.SMALLEST_BYTES = before
