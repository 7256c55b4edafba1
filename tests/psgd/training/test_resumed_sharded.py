"""`psgd train --shard` saved and resumed: at other stages, without sharding, and by other numbers of ranks."""

import numpy as np
import pytest

from psgd import training
from psgd.checkpoint import folder
from psgd.config import TrainConfig

OPTIONS = {
    "strategy": "allreduce", "optimizer": "adam", "lr": 0.01, "model": "mlp", "hidden": 24, "batch_size": 18,
    "eval_every": 0.5, "clip_norm": 0.3, "seed": 3,
}  # fmt: skip


def data(comm, path):
    """A separable problem as .npy files."""
    if comm.rank == 0:
        rng = np.random.default_rng(0)
        centres = rng.normal(size=(3, 6)) * 2
        for part, n in (("train", 200), ("test", 90)):
            y = rng.permutation(np.arange(n) % 3)
            np.save(path / f"y_{part}.npy", y)
            np.save(path / f"x_{part}.npy", (centres[y] + rng.normal(size=(n, 6))).astype(np.float32))
    comm.Barrier()
    return str(path)


def run(comm, dataset, path, epochs, **options):
    """The final weights and accuracy, on rank 0."""
    made = {"dataset": dataset, "epochs": epochs, "save": path.with_suffix(".npz"), **OPTIONS}
    result = training.run(TrainConfig(**made | options), comm)
    comm.Barrier()
    if comm.rank:
        return None
    with np.load(path.with_suffix(".npz")) as found:
        return dict(found), result["test_accuracy"]


def same(one, other):
    if one is None:
        return
    assert one[1] == other[1]
    for name, weights in one[0].items():
        np.testing.assert_array_equal(weights, other[0][name], err_msg=name)


@pytest.mark.ranks(3, timeout=200)
def test_a_run_goes_on_with_the_same_bits(comm, tmp_path):
    dataset = data(comm, tmp_path)
    kept = {"checkpoint_every": 3}
    whole = run(comm, dataset, tmp_path / "whole", 2)
    few = comm.Split(comm.rank == 2, comm.rank)
    saved = tmp_path / "0"
    run(comm, dataset, saved, 1, checkpoint_dir=saved, **kept)
    fewer = run(few, dataset, tmp_path / "fewer", 2, checkpoint_dir=saved, resume=True) if comm.rank < 2 else None
    comm.Barrier()
    for number, (before, after) in enumerate([(3, None), (3, 1), (1, 2), (None, 3), (2, 3)], 1):
        saved = tmp_path / str(number)
        run(comm, dataset, saved, 1, shard=before, checkpoint_dir=saved, **kept)
        step = folder.newest(saved).manifest.step if comm.rank == 0 else 0
        assert comm.bcast(step) == 3
        same(run(comm, dataset, saved, 2, shard=after, checkpoint_dir=saved, resume=True), whole)
    saved = tmp_path / "many"
    run(comm, dataset, saved, 1, shard=3, checkpoint_dir=saved, **kept)
    if comm.rank < 2:
        same(run(few, dataset, saved, 2, shard=3, checkpoint_dir=saved, resume=True), fewer)
    comm.Barrier()
    few.Free()


@pytest.mark.ranks(4, timeout=200)
def test_models_in_pieces_too(comm, tmp_path):
    """Saved in pieces with and without ranges, both are resumed alike: in pieces, in others, or whole."""
    dataset = data(comm, tmp_path)
    mesh = "pipe=2,data=2"
    whole = run(comm, dataset, tmp_path / "whole", 2, mesh=mesh)
    few = comm.Split(comm.rank > 1, comm.rank)
    ends = {}
    for before in (None, 3):
        saved = tmp_path / f"from{before}"
        run(comm, dataset, saved, 1, mesh=mesh, shard=before, checkpoint_dir=saved, checkpoint_every=3)
        again = {"checkpoint_dir": saved, "resume": True}
        other = "tensor=2,data=2"
        for after, where in ((1, mesh), (3, mesh), (2, other), (None, other), (3, None), (None, None)):
            if where is None:
                found = run(few, dataset, saved, 2, shard=after, **again) if comm.rank < 2 else None
                comm.Barrier()
            else:
                found = run(comm, dataset, saved, 2, shard=after, mesh=where, **again)
            if where == mesh:
                same(found, whole)
            same(found, ends.setdefault(where, found))
    few.Free()
