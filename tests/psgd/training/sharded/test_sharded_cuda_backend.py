"""Gradients of a model in units on a GPU are those of the whole model there."""

import numpy as np
import pytest
from harness.device import cupy

from psgd.config import configure
from psgd.data import load
from psgd.data.normalization import validate
from psgd.nn.models import build

pytestmark = pytest.mark.gpu


def test_gradients_are_those_of_the_whole():
    """One rank, whose part is all: what is left is the order of streams and where things lie."""
    xp = cupy()
    from mpi4py import MPI

    from psgd.collectives import Communicator
    from psgd.parallel.sharded import by_unit, units
    from psgd.parallel.sharded.exchange import Exchange
    from psgd.parallel.sharded.slices import Slices
    from psgd.training import preparation
    from psgd.training.sharded import sharded_backend

    digits = load("digits")
    statistics, config = validate(digits), configure(strategy="allreduce", batch_size=20, device="cuda")
    model = build("mlp", (1, 8, 8), 10, hidden=300)
    whole = xp.asarray(model.init(1))
    plain = preparation.backend(config, model, digits, statistics)
    plain.prepare(whole)
    grads = xp.zeros_like(whole)
    plain.bind(whole, grads)
    slices = Slices(units.of_stage(model), 1, 0)
    with Communicator(MPI.COMM_SELF) as wrapped:
        exchange = Exchange(wrapped, slices, whole.copy(), 3)
        backend = sharded_backend.make(
            config, by_unit.by_unit(model, exchange, graphs=True), exchange, digits, statistics
        )
        backend.prepare(exchange.params)
        for step in range(5):
            rows = np.arange(20) + 20 * step
            assert float(backend.gradient(rows)) == float(plain.gradient(rows))
            np.testing.assert_array_equal(exchange.own.get(), 20 * grads.get())
        exchange.free()
