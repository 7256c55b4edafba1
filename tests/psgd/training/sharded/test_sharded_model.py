"""`psgd train --shard` on real ranks: the result and the weights of `allreduce`, bit for bit."""

import numpy as np
import pytest

from psgd import training
from psgd.config import configure
from psgd.parallel.sharded import units

SMALL = {"dataset": "digits", "epochs": 1, "batch_size": 31, "optimizer": "adam", "lr": 0.003, "eval_every": 0.5}
TEXT = {
    **{"dataset": "genesis", "model": "gpt", "layers": 2, "width": 12, "heads": 2, "context": 256, "accumulate": 3},
    **{"epochs": 1, "batch_size": 10, "optimizer": "adam", "lr": 0.003, "eval_every": 0, "recompute": "2"},
}
ALIKE = ("train_loss", "test_loss", "test_accuracy", "steps", "samples", "test_f1", "test_perplexity")


def run(comm, folder, name, **options):
    """Trains; on rank 0 the part of the result that does not depend on time, and the weights by name."""
    path = folder / f"{name}.npz"
    result = training.run(configure(strategy="allreduce", save=path, **options), comm)
    if comm.rank:
        return None
    with np.load(path) as found:
        return {key: result.get(key) for key in ALIKE}, dict(found)


@pytest.mark.ranks(3, timeout=180)
def test_every_stage_trains_as_allreduce_does(comm, tmp_path):
    before, units.SMALLEST_BYTES = units.SMALLEST_BYTES, 256
    try:
        for case, options in enumerate(({**SMALL, "hidden": 17, "clip_norm": 0.1}, TEXT)):
            # Accumulated steps are reduced one by one in stages 2 and 3 alone.
            expected = run(comm, tmp_path, f"whole{case}", shard=2 if "accumulate" in options else None, **options)
            for stage in (1, 2, 3) if case == 0 else (3,):
                found = run(comm, tmp_path, f"sharded{case}{stage}", shard=stage, **options)
                if comm.rank == 0:
                    assert found[0] == expected[0], stage
                    assert expected[0]["steps"] > 5
                    assert list(found[1]) == list(expected[1])
                    for name in expected[1]:
                        np.testing.assert_array_equal(found[1][name], expected[1][name])
    finally:
        units.SMALLEST_BYTES = before


@pytest.mark.ranks(4, timeout=180)
def test_stage_1_of_a_model_in_pieces(comm, tmp_path):
    """Each piece's state is shared by the workers that have the piece; clipping goes by the whole model."""
    for mesh in ("pipe=2,data=2", "tensor=2,data=2"):
        options = {**SMALL, "hidden": 17, "clip_norm": 0.1, "mesh": mesh}
        expected = run(comm, tmp_path, "whole", **options)
        found = run(comm, tmp_path, "sharded", shard=1, **options)
        if comm.rank == 0:
            assert found[0] == expected[0]
            for name in expected[1]:
                np.testing.assert_array_equal(found[1][name], expected[1][name])


@pytest.mark.ranks(4, timeout=180)
def test_weights_for_pytorch_are_in_its_form(comm, tmp_path):
    """Also of pieces, each of which lies in parts on its copies."""
    torch = pytest.importorskip("torch")
    options = {**SMALL, "model": "cnn", "hidden": 8, "eval_every": 0, "strategy": "allreduce"}
    cases = [({}, (None, 2, 3)), ({"mesh": "pipe=2,data=2", "cut": "4"}, (None, 3))]
    for case, (more, stages) in enumerate(cases):
        found = {}
        for stage in stages:
            path = tmp_path / f"{case}{stage}.pt"
            training.run(configure(save=path, shard=stage, **options, **more), comm)
            if comm.rank == 0:
                found[stage] = torch.load(path)
        for stage, weights in found.items():
            assert list(weights) == list(found[None])
            for name, tensor in weights.items():
                assert torch.equal(tensor, found[None][name]), (stage, name)
        comm.Barrier()


@pytest.mark.ranks(2)
def test_weights_that_are_not_numbers_are_not_saved(comm, tmp_path):
    """At stage 3 one rank alone has them; all leave the file alone."""
    options = {**SMALL, "hidden": 17, "epochs": 1, "lr": 1e30, "optimizer": "sgd", "shard": 3}
    with np.errstate(all="ignore"):
        training.run(configure(strategy="allreduce", save=tmp_path / "w.npz", **options), comm)
    comm.Barrier()
    assert not (tmp_path / "w.npz").exists()


@pytest.mark.ranks(2)
def test_nobody_draws_the_whole_model_at_stage_3(comm):
    """The largest array that a rank has for parameters is its own part, or a unit of another's."""
    from psgd.nn.models import build
    from psgd.parallel.sharded.slices import Slices
    from psgd.training.roles import assign
    from psgd.training.sharded.sharded_model import ShardedModel

    model = build("mlp", (64,), 10, hidden=4001)
    config = configure(strategy="allreduce", shard=3)
    made = ShardedModel(model, config, assign(config, comm))
    slices = Slices(units.of_stage(model), 2, comm.rank)
    assert made.vector(config, False).size == slices.size
    assert abs(slices.size - model.layout.size / 2) <= len(slices.units)
    largest = max(len(unit) for unit in slices.units)
    assert made.exchange.buffer_bytes <= 4 * 4 * (largest + 16)
    made.close()
