"""Vectors of sharded runs against the formulas of ZeRO, and against what the ranks really have."""

import itertools

import pytest

from psgd.estimate import sharded_vectors
from psgd.estimate.sharded_vectors import UNDER_WAY, of_stage, of_vector
from psgd.estimate.strategy_vectors import ACCUMULATED
from psgd.nn.models import build

MODEL = build("mlp", (1, 28, 28), 10, hidden=512)
PSI = MODEL.layout.size
GPT = build("gpt", (16,), 64, layers=3, width=64, heads=4, tokens=True)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("shard", [1, 2, 3])
def test_the_formulas_of_adam(shard, ranks):
    rows = of_stage(MODEL, shard, ranks, state=2)
    held = sum(rows.values()) - rows.get(UNDER_WAY, 0)
    expected = {1: 8 + 8 / ranks, 2: 4 + 12 / ranks, 3: 16 / ranks}[shard] * PSI
    assert held == pytest.approx(expected, rel=0.001)


def test_buffers_are_two_of_the_largest_unit_each_way():
    largest = 4 * (784 * 512 + 512)
    assert UNDER_WAY not in of_stage(MODEL, 1, 2, 2)
    small = 4 * (512 * 10 + 10)
    assert of_stage(MODEL, 2, 2, 2)[UNDER_WAY] == pytest.approx(largest + small, rel=0.001)
    assert of_stage(MODEL, 3, 2, 2)[UNDER_WAY] == pytest.approx(2 * (largest + small), rel=0.001)


def test_a_shared_table_has_a_buffer_of_its_own():
    assert of_stage(GPT, 3, 2, 2)[UNDER_WAY] > 2 * of_stage(GPT, 2, 2, 2)[UNDER_WAY]


def test_accumulation_keeps_a_whole_sum_in_stage_1_alone():
    """In others two units' own parts arrive before they are added."""
    assert of_stage(MODEL, 1, 2, 2, steps=4)[ACCUMULATED] == 4 * PSI
    for shard in (2, 3):
        one, several = (of_stage(MODEL, shard, 2, 2, steps=steps) for steps in (1, 4))
        assert ACCUMULATED not in several
        assert several[UNDER_WAY] - one[UNDER_WAY] == pytest.approx(2 * (784 * 512 + 512 + 512 * 10 + 10), rel=0.001)


def test_a_bare_vector_shares_its_state():
    rows = of_vector(1_000_003, 4, 3, state=2)
    assert rows["parameters"] == rows["gradients"] == 4_000_012
    assert rows["optimizer state"] == pytest.approx(8 * 1_000_003 / 3, rel=0.001)


@pytest.mark.ranks(2)
def test_an_exchange_has_these_buffers(comm):
    from psgd.collectives import Communicator
    from psgd.parallel.sharded import by_unit, units
    from psgd.parallel.sharded.exchange import Exchange
    from psgd.parallel.sharded.slices import Slices

    for model, shard, steps in itertools.product((MODEL, GPT), (2, 3), (1, 2)):
        slices = Slices(units.of_stage(model), comm.size, comm.rank)
        params = by_unit.first_own(model, slices, 1) if shard == 3 else model.init(1)
        wrapped = Communicator(comm)
        shared = by_unit.shared_units(model, slices.units)
        exchange = Exchange(wrapped, slices, params, shard, steps, shared)
        rows = sharded_vectors.of_stage(model, shard, comm.size, 2, steps)
        assert exchange.buffer_bytes == rows[UNDER_WAY]
        if comm.rank == 0:
            assert params.nbytes == rows["parameters"] and exchange.own.nbytes == rows["gradients"]
        exchange.free()
        wrapped.free()


@pytest.mark.ranks(2)
def test_a_modules_exchange_has_these_buffers(comm):
    torch = pytest.importorskip("torch")
    from torch import nn

    import psgd.torch

    for shard, steps in itertools.product((2, 3), (1, 2)):
        module = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 50), nn.Linear(50, 3))
        module.register_parameter("scale", nn.Parameter(torch.ones(7)))
        with psgd.torch.shard(module, comm, stage=shard, accumulate=steps) as model:
            ranges, alone = [unit.part for unit in model.units], {0} if not model.units[0].owner else {3}
            rows = sharded_vectors.rows(ranges, 4, shard, comm.size, 2, steps, alone, gradients_too=True)
            assert model.buffer_bytes == rows[UNDER_WAY] and len(alone) == 1
