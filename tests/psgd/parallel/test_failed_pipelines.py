"""Pipelines that end with an error leave nothing that MPI writes to later."""

import gc

import numpy as np
import pytest

from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.parallel.pipeline import Pipeline

MODEL = Model([Linear(7), Linear(5)], (6,))


class GoneError(Exception):
    """Of the body of a block."""


@pytest.mark.ranks(2)
def test_an_error_in_the_block_on_all_ranks_frees_requests_and_spares_memory(comm):
    """Each rank tells the other of its error, whose alarm must not be written where other arrays are by then."""
    for _ in range(30):
        with pytest.raises(GoneError), Pipeline(comm, MODEL, (1,), batch=4) as pipeline:
            params = pipeline.init(0)
            pipeline.bind(params, np.zeros_like(params))
            pipeline.gradient(4, np.ones((4, 6), np.float32), np.zeros(4, np.int64))
            raise GoneError
        pipeline.close()  # nothing is left to do
        del pipeline
        gc.collect()
        arrays = [np.full(200 + 8 * k, 7, np.int64) for k in range(50)]  # about an alarm's size
        comm.Barrier()
        assert all((array == 7).all() for array in arrays)
