"""Sharded pipelines on GPUs: the bits of unsharded ones there. Also with a simulated GPU, whose graphs are as true."""

import contextlib

import numpy as np
import pytest
from harness.device import cupy
from harness.fake_gpu import FakeGpu
from harness.sharded_pipelines import run
from harness.sharded_runs import mlp, tied

from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.relu import ReLU
from psgd.parallel import pipeline as module
from psgd.parallel.mesh import ProcessMesh
from psgd.parallel.sharded import near_gathers, units
from psgd.parallel.sharded.pieces.sharded_pipeline import ShardedPipeline


def bare():
    return Model([ReLU(), Linear(9), Linear(5)], (7,))


def wide():
    """Parts of which no GPU has none, so that they can be copied from where they lie."""
    return Model([Linear(64, relu=True), Linear(40), Linear(48, relu=True), Linear(8)], (32,))


CASES = [
    (lambda: mlp(7), (3,), "1f1b", 3),
    (lambda: mlp(7), (1, 2, 4), "interleaved", 2),
    (lambda: mlp(7), (2,), "zero-bubble", 3),
    (lambda: mlp(7), (2,), "gpipe", 1),
    (tied, (2,), "1f1b", 1),
    (tied, (2,), "1f1b", 3),
    (bare, (1,), "1f1b", 2),  # a stage without parameters
]


@contextlib.contextmanager
def small_units():
    before, units.SMALLEST_BYTES = units.SMALLEST_BYTES, 64
    try:
        yield
    finally:
        units.SMALLEST_BYTES = before


@pytest.mark.ranks(4, timeout=200)
def test_simulated(comm):
    """Passes become graphs where all stays in its place, and only there."""
    with small_units(), ProcessMesh(comm, pipe=2, data=2) as mesh, pytest.MonkeyPatch.context() as patch:
        for near in (True, False):  # or gathers in one queue with reductions, as between GPUs that are no peers
            if not near:
                patch.setattr(near_gathers, "possible", lambda *_: False)
            for make, cuts, schedule, microbatches in CASES:
                ran = {}
                for shard in (0, 2, 3):
                    gpu = FakeGpu()
                    patch.setattr(module, "_gpu", lambda gpu=gpu: gpu)
                    how = cuts, schedule, microbatches
                    ran[shard] = run(mesh, make(), shard, *how, steps=17, device="cuda", gpu=gpu)
                    several = microbatches > 1 or len(cuts) > 1 or make is tied
                    assert (gpu.launched > 5) == (not shard or (shard == 2 and several)), (shard, how)
                for shard in (2, 3):
                    assert ran[shard][0] == ran[0][0], (near, shard, how)
                    np.testing.assert_array_equal(ran[shard][1], ran[0][1], err_msg=f"{near} {shard} {how}")
        for make, *how in (CASES[0], CASES[3]):
            found = []
            for shard in (2, 3):
                patch.setattr(module, "_gpu", FakeGpu)
                found.append(run(mesh, make(), shard, *how, accumulate=3, device="cuda"))
            assert found[0][0] == found[1][0]
            np.testing.assert_array_equal(found[0][1], found[1][1])


def on_gpus(comm, patch, peers):
    """This rank's GPU is current; ranks that share one exchange by kernels too, in turn, where `peers` is 1."""
    cupy()
    from psgd.collectives.device.pick_gpu import choose_device

    choose_device(comm)
    patch.setenv("PSGD_PEERS", peers)


def compare(mesh, cases, steps=9):
    for make, *how in cases:
        losses, params = run(mesh, make(), 0, *how, steps=steps, device="cuda")
        assert np.isfinite(params).all()
        for shard in (2, 3):
            found = run(mesh, make(), shard, *how, steps=steps, device="cuda")
            assert found[0] == losses, (shard, how)
            np.testing.assert_array_equal(found[1], params, err_msg=f"{shard} {how}")


@pytest.mark.gpu
@pytest.mark.ranks(2, timeout=200)
@pytest.mark.parametrize("peers", ["1", "0"])
def test_copies_of_one_stage(comm, peers):
    with small_units(), ProcessMesh(comm, pipe=1, data=2) as mesh, pytest.MonkeyPatch.context() as patch:
        on_gpus(comm, patch, peers)
        how = {"copies": mesh.data, "shard": 3, "batch": 6, "microbatches": 3, "device": "cuda"}
        with ShardedPipeline(mesh.pipe, wide(), (), **how) as pipeline:
            assert type(pipeline.exchange.gathers).__name__ == ("PeerGathers" if peers == "1" else "Gathers")
        compare(mesh, [(wide, (), "1f1b", 3), (wide, (), "gpipe", 1), (wide, (), "zero-bubble", 2)], steps=17)
    comm.Barrier()


@pytest.mark.gpu
@pytest.mark.ranks(4, timeout=300)
@pytest.mark.parametrize("peers", ["1", "0"])
def test_a_pipeline_and_its_copy(comm, peers):
    with small_units(), ProcessMesh(comm, pipe=2, data=2) as mesh, pytest.MonkeyPatch.context() as patch:
        on_gpus(comm, patch, peers)
        compare(mesh, [(wide, (2,), "1f1b", 3), *CASES])
    comm.Barrier()


@pytest.mark.gpu
@pytest.mark.ranks(2, timeout=200)
def test_without_graphs_and_with_accumulation(comm):
    with small_units(), ProcessMesh(comm, pipe=1, data=2) as mesh, pytest.MonkeyPatch.context() as patch:
        on_gpus(comm, patch, "1")
        with pytest.MonkeyPatch.context() as less:
            less.setenv("PSGD_CUDA_GRAPHS", "0")
            compare(mesh, [(wide, (), "1f1b", 3)])
        for microbatches in (1, 3):
            two, three = (
                run(mesh, wide(), shard, (), "1f1b", microbatches, accumulate=3, device="cuda") for shard in (2, 3)
            )
            assert two[0] == three[0]
            np.testing.assert_array_equal(two[1], three[1])
    comm.Barrier()
