"""The benchmark of pipelines: verified rows, and a pipeline that is wrong."""

import pytest

from psgd.kernels.errors import Error
from psgd.launch.bench.pipeline.ranks import Sizes, measure
from psgd.parallel.continuous.without_flushes import PipeDream
from psgd.parallel.pipeline import Pipeline

SIZES = Sizes(layers=4, width=7, batch=6, microbatches=3)


@pytest.mark.ranks(2)
def test_rows_are_the_same_on_all_ranks(comm):
    rows = list(measure(comm, ["1f1b", "interleaved", "inference", "pipedream-2bw"], SIZES, 2))
    assert [row["schedule"] for row in rows] == ["1f1b", "interleaved", "inference", "pipedream-2bw"]
    assert len({str(each) for each in comm.allgather(rows)}) == 1


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
