"""Pipelines that end with an error leave no request behind, whose memory MPI would write to later."""

import numpy as np
import pytest
from mpi4py import MPI

from psgd.collectives.mpi import request_cleanup
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.parallel.pipeline import Pipeline

MODEL = Model([Linear(7), Linear(5)], (6,))


class GoneError(Exception):
    """Of the body of a block."""


def fails(comm, made):
    """A block that ends with an error on all ranks, so that each one rings at the other."""
    with Pipeline(comm, MODEL, (1,), batch=4) as pipeline:
        made.append(pipeline)
        params = pipeline.init(0)
        pipeline.bind(params, np.zeros_like(params))
        pipeline.gradient(4, np.ones((4, 6), np.float32), np.zeros(4, np.int64))
        raise GoneError


@pytest.mark.ranks(2)
def test_an_error_in_the_block_takes_all_requests_back(comm):
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_cleanup, "_PATIENCE_S", 10)  # on a busy machine a message takes longer
        with pytest.raises(GoneError):
            fails(comm, made)
        comm.Barrier()  # a rank's alarm has gone out once the other one, inside MPI, has taken it
    (pipeline,) = made
    assert pipeline._comm == MPI.COMM_NULL
    assert not any(pipeline._alarm._in) and not any(pipeline._alarm._out)
    pipeline.close()  # nothing is left to do
