"""Evaluations of workers with unequal parts of the test set: all make as many passes, and sums are those of one."""

import numpy as np
import pytest

from psgd.collectives import Communicator
from psgd.config import configure
from psgd.data import load
from psgd.data.normalization import validate
from psgd.nn.models import build
from psgd.parallel.sharded import by_unit, units
from psgd.parallel.sharded.exchange import Exchange
from psgd.parallel.sharded.slices import Slices
from psgd.training import preparation
from psgd.training.sharded import sharded_backend


@pytest.mark.ranks(3)
def test_gradients_and_evaluations_are_those_of_the_whole(comm):
    digits = load("digits")
    statistics, config = validate(digits), configure(strategy="allreduce", batch_size=20)
    model = build("mlp", (1, 8, 8), 10, hidden=30)
    whole = model.init(1)
    plain = preparation.backend(config, model, digits, statistics)
    grads = np.zeros_like(whole)
    plain.bind(whole, grads)
    slices = Slices(units.of_stage(model), comm.size, comm.rank)
    with Communicator(comm) as wrapped:
        exchange = Exchange(wrapped, slices, by_unit.first_own(model, slices, 1), 3)
        backend = sharded_backend.make(config, by_unit.by_unit(model, exchange), exchange, digits, statistics)
        backend.prepare(exchange.params)
        rows = np.arange(20) + 20 * comm.rank
        expected = plain.gradient(rows)
        assert backend.gradient(rows) == expected
        total = comm.allreduce(np.asarray(20 * grads, np.float64))
        for unit, part in enumerate(slices.own):
            mine = exchange.own[slices.place(unit)]
            np.testing.assert_allclose(mine, total[part.start : part.stop], rtol=1e-3, atol=1e-4)
        backend._at_once = plain._at_once = 90  # of 300: 4 batches for 3 workers
        found = np.array(backend.evaluate(comm.rank, comm.size))
        np.testing.assert_allclose(comm.allreduce(found), plain.evaluate(0, 1), rtol=1e-6)
        np.testing.assert_array_equal(backend.evaluate(0, 1), plain.evaluate(0, 1))
        exchange.free()
