"""`--device cuda --shard 2|3` with a mesh: the result and the weights of the unsharded mesh there, bit for bit.

`test_sharded_pieces` has the same with a GPU that is played.
"""

import numpy as np
import pytest
from harness.device import cupy

from psgd import training
from psgd.config import configure

SMALL = {
    **{"dataset": "digits", "hidden": 300, "epochs": 1, "batch_size": 31, "optimizer": "adam", "lr": 0.003},
    **{"clip_norm": 0.1, "eval_every": 0.5},
}
TEXT = {
    **{"dataset": "genesis", "model": "gpt", "layers": 2, "width": 32, "heads": 2, "context": 64, "epochs": 1},
    **{"batch_size": 30, "optimizer": "adam", "lr": 0.003, "mesh": "pipe=2,data=2", "cut": "2", "microbatches": 2},
}
ALIKE = ("train_loss", "test_loss", "test_accuracy", "steps", "samples")


def run(comm, folder, name, **options):
    """Trains; on rank 0 the part of the result that does not depend on time, and the weights by name."""
    path = folder / f"{name}.npz"
    result = training.run(configure(strategy="allreduce", device="cuda", save=path, **options), comm)
    comm.Barrier()
    if comm.rank:
        return None
    with np.load(path) as found:
        return {key: result[key] for key in ALIKE}, dict(found)


def same(found, expected, what):
    assert found[0] == expected[0], what
    assert list(found[1]) == list(expected[1])
    for name in expected[1]:
        np.testing.assert_array_equal(found[1][name], expected[1][name], err_msg=f"{what} {name}")


@pytest.mark.gpu
@pytest.mark.ranks(4, timeout=240)
@pytest.mark.parametrize(
    ("options", "peers"),
    [
        ({**SMALL, "mesh": "pipe=2,data=2", "cut": "2", "microbatches": 4}, "1"),
        ({**SMALL, "mesh": "pipe=2,data=2", "cut": "2", "microbatches": 1, "data_device": "cpu"}, "0"),
        ({**SMALL, "mesh": "tensor=2,data=2"}, "1"),
        (TEXT, "1"),
        (TEXT, "0"),
    ],
)
def test_bits_are_those_of_the_unsharded_mesh(comm, tmp_path, options, peers):
    """By peers' kernels and copy engines, also of ranks that share a GPU, and by way of the hosts."""
    cupy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PSGD_PEERS", peers)
        expected = run(comm, tmp_path, "whole", **options)
        for stage in (2, 3):
            found = run(comm, tmp_path, "sharded", shard=stage, **options)
            if comm.rank == 0:
                same(found, expected, stage)


@pytest.mark.gpu
@pytest.mark.ranks(4, timeout=240)
def test_goes_on_from_a_checkpoint_in_another_stage(comm, tmp_path):
    cupy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PSGD_PEERS", "1")
        options = {**SMALL, "mesh": "pipe=2,data=2", "cut": "2", "microbatches": 2, "epochs": 2}
        expected = run(comm, tmp_path, "whole", **options)
        saved = {"checkpoint_dir": comm.bcast(tmp_path) / "saved", "checkpoint_every": 10}
        run(comm, tmp_path, "first", **{**options, "epochs": 1}, **saved, shard=3)
        found = run(comm, tmp_path, "second", **options, **saved, shard=2, resume=True)
        if comm.rank == 0:
            same(found, expected, "resumed")
