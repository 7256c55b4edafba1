"""Stages of a PyTorch module that take steps without waiting: what psgd's own layers come to with the same delays."""

import itertools

import numpy as np
import pytest

import psgd
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.optim.optimizer import Optimizer, OptimizerOptions
from psgd.optim.rules import create
from psgd.optim.schedules import Constant
from psgd.parallel.continuous.without_flushes import PipeDream

torch = pytest.importorskip("torch")
nn = torch.nn
WIDTHS, CLASSES = (6, 12, 9, 11, 5), 5
CUTS = {1: (), 2: (2,), 3: (1, 2)}


def module():
    layers = []
    for inputs, units in itertools.pairwise(WIDTHS):
        layers.append(nn.Sequential(nn.Linear(inputs, units), nn.ReLU(inplace=True)))
    layers[-1] = layers[-1][0]
    return nn.Sequential(*layers).double()


def own():
    layers = [Linear(units, relu=True) for units in WIDTHS[1:-1]]
    return Model((*layers, Linear(CLASSES)), (WIDTHS[0],), np.float64)


def batch_of(step, n):
    rng = np.random.default_rng(step)
    return rng.standard_normal((n, WIDTHS[0])), rng.integers(0, CLASSES, n)


def optimizer(params):
    return Optimizer(params, OptimizerOptions(create("momentum", 0.9, 1e-3), Constant(0.05), 0.0))


def copied(into, pipeline, source):
    """Gives a module the values of a vector of psgd's layers, whose weights are turned."""
    ours = pipeline.layout.views(source)
    for view, value in zip(into.layout.views(into.params).values(), ours.values(), strict=True):
        view[...] = value.T if value.ndim == 2 else value


@pytest.mark.ranks(1, 2, 3)
def test_steps_are_those_of_psgds_layers(comm):
    counts = [8] * 24 + [3]
    for schedule, microbatches, recompute in (
        ("pipedream", 1, None),
        ("pipedream", 2, "1"),
        ("pipedream-2bw", 4, None),
    ):
        with PipeDream(
            comm,
            own(),
            CUTS[comm.size],
            batch=8,
            microbatches=microbatches,
            two_versions=schedule == "pipedream-2bw",
        ) as there:
            theirs = optimizer(there.init(1))
            first = theirs.params.copy()
            wanted = there.train(theirs, sum(counts), lambda step: batch_of(step, counts[step]))
        options = {"cuts": CUTS[comm.size], "sample": (WIDTHS[0],), "batch": 8, "microbatches": microbatches}
        with psgd.torch.pipeline(module(), comm, schedule=schedule, recompute=recompute, **options) as stages:
            copied(stages, there, first)
            mine = optimizer(stages.params)
            loss = stages.pipeline.train(mine, sum(counts), lambda step: batch_of(step, counts[step]))
            assert loss == pytest.approx(wanted, rel=1e-9)
            assert stages.pipeline.versions_most <= there.versions_most + 1
            found = stages.params.copy()
            copied(stages, there, theirs.params)
            np.testing.assert_allclose(found, stages.params, rtol=1e-9, atol=1e-12)
            x, y = batch_of(99, 8)
            assert np.isfinite(stages.gradient(8, x, y)) and stages.evaluate(8, x, y)[1] > 0
