"""The benchmark of pipelines: verified rows, and a pipeline that is wrong."""

import numpy as np
import pytest
from harness.device import cupy
from harness.fake_gpu import FakeGpu

from psgd.kernels.errors import Error
from psgd.launch.bench.pipeline import ranks
from psgd.launch.bench.pipeline.ranks import Sizes, measure
from psgd.parallel import pipeline
from psgd.parallel.continuous.without_flushes import PipeDream
from psgd.parallel.pipeline import Pipeline

SIZES = Sizes(layers=4, width=7, batch=6, microbatches=3)


@pytest.mark.ranks(2)
def test_rows_are_the_same_on_all_ranks(comm):
    rows = list(measure(comm, ["1f1b", "interleaved", "inference", "pipedream-2bw"], SIZES, 2))
    assert [row["schedule"] for row in rows] == ["1f1b", "interleaved", "inference", "pipedream-2bw"]
    assert len({str(each) for each in comm.allgather(rows)}) == 1


@pytest.mark.ranks(2)
@pytest.mark.parametrize("place", ["simulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_on_gpus_nobody_times_passes(comm, place):
    with pytest.MonkeyPatch.context() as patch:
        if place == "gpu":
            cupy()
        else:
            patch.setattr(ranks, "_module", lambda comm, device: np)
            patch.setattr(pipeline, "_gpu", FakeGpu)
        rows = list(measure(comm, ["1f1b", "pipedream", "pipedream-2bw"], SIZES, 2, "cuda"))
    assert [row["schedule"] for row in rows] == ["1f1b", "pipedream", "pipedream-2bw"]
    for row in rows:
        assert row["device"] == "cuda" and row["bubble"] is None and "shares" not in row
        assert min(row["one_seconds"], row["pipeline_seconds"]) > 0
    comm.Barrier()


@pytest.mark.ranks(2)
def test_a_wrong_loss_is_found(comm):
    right = Pipeline.gradient
    Pipeline.gradient = lambda self, *arguments: right(self, *arguments) * 1.001
    try:
        with pytest.raises(Error, match=r"gpipe: the loss is 1\.0e-03 from the whole's"):
            list(measure(comm, ["gpipe"], SIZES, 1))
    finally:
        Pipeline.gradient = right


@pytest.mark.ranks(2)
def test_a_wrong_loss_of_steps_is_found(comm):
    right = PipeDream.steps
    PipeDream.steps = lambda self, *arguments: right(self, *arguments) * 1.001
    try:
        with pytest.raises(Error, match=r"pipedream: the loss is 1\.0e-03 from the whole's"):
            list(measure(comm, ["pipedream"], SIZES, 1))
    finally:
        PipeDream.steps = right
