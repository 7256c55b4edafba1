"""Sharded pipelines beside unsharded ones, bit by bit: batches of all sizes, delays, shared tables, accumulation."""

import contextlib

import numpy as np
import pytest
from harness.sharded_pipelines import run
from harness.sharded_runs import mlp, tied

from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.relu import ReLU
from psgd.parallel.mesh import ProcessMesh
from psgd.parallel.sharded import near_gathers, units


@pytest.mark.ranks(4, timeout=150)
def test_bits_are_those_of_the_unsharded_pipeline(comm):
    def bare():
        return Model([ReLU(), Linear(9), Linear(5)], (7,))

    cases = [
        (lambda: mlp(7), (3,), "1f1b", 3),
        (lambda: mlp(7), (1, 2, 4), "interleaved", 2),
        (lambda: mlp(7), (2,), "zero-bubble", 3),
        (lambda: mlp(7), (2,), "gpipe", 1),
        (tied, (2,), "1f1b", 1),
        (bare, (1,), "1f1b", 2),  # a stage without parameters
    ]
    before, units.SMALLEST_BYTES = units.SMALLEST_BYTES, 64
    with ProcessMesh(comm, pipe=2, data=2) as mesh, contextlib.ExitStack() as after:
        after.callback(setattr, units, "SMALLEST_BYTES", before)
        for make, *how in cases:
            losses, params = run(mesh, make(), 0, *how)
            assert np.isfinite(params).all()
            for shard in (2, 3):
                found = run(mesh, make(), shard, *how)
                assert found[0] == losses, (shard, how)
                np.testing.assert_array_equal(found[1], params, err_msg=f"{shard} {how}")
        with pytest.MonkeyPatch.context() as patch:  # as on several nodes, where gathers have an order
            patch.setattr(near_gathers, "possible", lambda *_: False)
            for make, *how in cases[:2]:
                whole, far = run(mesh, make(), 0, *how), run(mesh, make(), 3, *how)
                assert far[0] == whole[0]
                np.testing.assert_array_equal(far[1], whole[1])
        for make, *how in (cases[0], cases[3]):
            losses, params = run(mesh, make(), 0, *how, accumulate=3)
            found = [run(mesh, make(), shard, *how, accumulate=3) for shard in (2, 3)]
            assert found[0][0] == found[1][0]
            np.testing.assert_array_equal(found[0][1], found[1][1])
            np.testing.assert_allclose(found[0][1], params, atol=1e-4)
