"""PipeDream on real ranks: the bits of a sequential program with the same delays; versions; what is refused."""

import time

import numpy as np
import pytest
from harness import delayed

from psgd.kernels.errors import PeerLostError, UsageError
from psgd.nn.layers.dropout import Dropout
from psgd.nn.layers.embedding import Embedding, Unembedding
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.relu import ReLU
from psgd.nn.reshape import Flatten
from psgd.optim.optimizer import Optimizer, OptimizerOptions
from psgd.optim.rules import create
from psgd.optim.schedules import Constant
from psgd.parallel.continuous.without_flushes import PipeDream
from psgd.parallel.schedules import grid
from psgd.parallel.schedules.rehearsal import Cell

LAYERS = (Linear(12, relu=True), Linear(9), ReLU(), Linear(11, relu=True), Linear(7, relu=True), Linear(5))
SHAPE, CLASSES = (6,), 5
CUTS = {1: (), 2: (3,), 3: (1, 4), 4: (1, 3, 4)}


def make_model(dropout=False):
    return Model((*LAYERS[:2], Dropout(0.3), *LAYERS[2:]) if dropout else LAYERS, SHAPE)


def options(name="momentum", clip_norm=0.0):
    return OptimizerOptions(create(name, 0.9, 1e-3), Constant(0.05), clip_norm)


def batch_of(step, n):
    rng = np.random.default_rng(step)
    return rng.standard_normal((n, *SHAPE)).astype(np.float32), rng.integers(0, CLASSES, n)


def draws_of(step, n):
    return step, np.arange(n) + 1000 * step


def simulate(ranks, counts, size, delay, name, dropout=False):
    """The delayed updates in one process.

    Args:
        ranks: stages.
        counts: samples of each step.
        size: of a microbatch.
        delay: as of `harness.delayed`.
        name: of the rule.
        dropout: a layer drops.

    Returns:
        The parameters of each stage, and the mean loss.
    """
    simulation = delayed.Simulation(make_model(dropout), CUTS[ranks], options(name), 1, size)
    draws = [draws_of(step, n) if dropout else (None, None) for step, n in enumerate(counts)]
    steps = [
        delayed.Step(*batch_of(step, n), *drawn) for (step, n), drawn in zip(enumerate(counts), draws, strict=True)
    ]
    return simulation.params, simulation.run(steps, delay)


def run(comm, counts, name="momentum", **named):
    rank, size = comm.Get_rank(), comm.Get_size()
    with PipeDream(comm, make_model(), CUTS[size], batch=counts[0], **named) as pipeline:
        optimizer = Optimizer(pipeline.init(1), options(name))
        loss = pipeline.train(optimizer, sum(counts), lambda step: batch_of(step, counts[step]))
        assert pipeline.counters.in_flight_max <= size - rank
        return optimizer.params, loss, pipeline.versions_most


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_stashed_weights_have_the_bits_of_delayed_updates(comm, name):
    ranks, rank = comm.Get_size(), comm.Get_rank()
    counts = [8] * 29 + [3]
    params, loss, versions = run(comm, counts, name)
    expected = simulate(ranks, counts, 8, delayed.stashed(ranks), name)
    assert np.array_equal(params, expected[0][rank])
    assert loss == expected[1]
    assert versions == ranks - rank
    again = run(comm, counts, name)
    assert np.array_equal(params, again[0]) and loss == again[1]


@pytest.mark.ranks(2, 3)
def test_steps_of_several_microbatches(comm):
    ranks, rank = comm.Get_size(), comm.Get_rank()
    counts = [8] * 11 + [3]
    params, loss, _ = run(comm, counts, microbatches=4)
    expected = simulate(ranks, counts, 2, delayed.stashed(ranks, 4), "momentum")
    assert np.array_equal(params, expected[0][rank]) and loss == expected[1]


@pytest.mark.ranks(1, 2, 3, 4)
def test_two_versions_are_one_step_late_everywhere(comm):
    ranks, rank = comm.Get_size(), comm.Get_rank()
    counts = [8] * 11 + [3]
    params, loss, versions = run(comm, counts, microbatches=4, two_versions=True)
    expected = simulate(ranks, counts, 2, delayed.two_versions, "momentum")
    assert np.array_equal(params, expected[0][rank]) and loss == expected[1]
    assert versions == 2


@pytest.mark.ranks(2, 3)
def test_dropout_draws_by_step_and_sample(comm):
    ranks, counts = comm.Get_size(), [8] * 7
    with PipeDream(comm, make_model(dropout=True), CUTS[ranks], batch=8) as pipeline:
        optimizer = Optimizer(pipeline.init(1), options())
        loss = pipeline.train(optimizer, 56, lambda step: batch_of(step, 8), lambda step: draws_of(step, 8))
    expected = simulate(ranks, counts, 8, delayed.stashed(ranks), "momentum", dropout=True)
    assert np.array_equal(optimizer.params, expected[0][comm.Get_rank()]) and loss == expected[1]


@pytest.mark.ranks(2)
def test_a_parameter_of_two_stages_is_refused(comm):
    tied = (Embedding(5, 4), Linear(4), Unembedding(5, tied="embedding1.weight"))
    model = Model((*tied, Flatten(), Linear(3)), (3,))
    with pytest.raises(UsageError, match=r"embedding1.weight, which stages 0 and 1 hold: stages take their steps"):
        PipeDream(comm, model, (1,), batch=8)


@pytest.mark.ranks(4)
def test_copies_that_average_each_gradient_are_one_with_twice_the_batch(comm):
    copy, stage = divmod(comm.Get_rank(), 2)
    pipe, data = comm.Split(copy), comm.Split(stage)

    def half(step):
        x, y = batch_of(step, 16)
        return x[8 * copy :][:8], y[8 * copy :][:8]

    def average(gradient):
        total = np.empty_like(gradient)
        data.Allreduce(gradient, total)
        np.divide(total, 2, out=gradient)

    with PipeDream(pipe, make_model(), CUTS[2], batch=8) as pipeline:
        optimizer = Optimizer(pipeline.init(1), options("sgd"))
        pipeline.train(optimizer, 8 * 12, half, combine=average)
    expected, _ = simulate(2, [16] * 12, 16, delayed.stashed(2), "sgd")
    np.testing.assert_allclose(optimizer.params, expected[stage], rtol=1e-4, atol=1e-6)
    assert np.array_equal(*data.allgather(optimizer.params))
    pipe.Free()
    data.Free()


@pytest.mark.ranks(3)
def test_a_rank_that_fails_stops_the_others(comm):
    pipeline = PipeDream(comm, make_model(), CUTS[3], batch=8)
    optimizer = Optimizer(pipeline.init(1), options())

    def broken(step):
        if step == 5 and comm.Get_rank() == 0:
            raise ZeroDivisionError
        return batch_of(step, 8)

    with pytest.raises(ZeroDivisionError if comm.Get_rank() == 0 else PeerLostError):
        pipeline.train(optimizer, 800, broken)
    comm.Barrier()
    pipeline.close()


@pytest.mark.ranks(2)
def test_state_goes_on_from_call_to_call(comm):
    with PipeDream(comm, make_model(), (3,), batch=8) as pipeline:
        optimizer = Optimizer(pipeline.init(1), options())
        for epoch in range(3):
            loss = pipeline.train(optimizer, 40, lambda step, epoch=epoch: batch_of(5 * epoch + step, 8))
        assert optimizer.version == 15 and np.isfinite(loss)
        right, _ = pipeline.evaluate(8, *batch_of(0, 8))
        assert 0 <= right <= 8


class Sleeper(Linear):
    """A layer that takes its time."""

    def forward(self, state, x, params):
        time.sleep(0.04)
        return super().forward(state, x, params)

    def backward_input(self, state, dy, params, grads):
        time.sleep(0.04)
        return super().backward_input(state, dy, params, grads)

    def backward_weights(self, state, grads):
        time.sleep(0.04)
        super().backward_weights(state, grads)


def quietest(cells, ranks, parts=10):
    """The bubble in the best of equal parts of the time: other programs may have slowed the others."""
    first, whole = min(cell.start for cell in cells), grid.span(cells)
    bubbles = []
    for part in range(parts):
        start, stop = (first + whole * end / parts for end in (part, part + 1))
        inside = [Cell(c.rank, c.instruction, max(c.start, start), min(c.stop, stop)) for c in cells]
        bubbles.append(grid.bubble([cell for cell in inside if cell.stop > cell.start], ranks))
    return min(bubbles)


@pytest.mark.ranks(4)
def test_no_bubble_once_it_is_full(comm):
    layers = tuple(Sleeper(5) for _ in range(4))
    cells = []
    with PipeDream(comm, Model(layers, SHAPE), (1, 2, 3), batch=8) as pipeline:
        pipeline.executor.observer = lambda each, start, stop: cells.append(Cell(comm.Get_rank(), each, start, stop))
        optimizer = Optimizer(pipeline.init(1), options("sgd"))
        pipeline.train(optimizer, 8 * 32, lambda step: batch_of(step, 8))
    everyone = [cell for mine in comm.allgather(cells) for cell in mine]
    assert quietest(grid.steady(everyone, 4), 4) < 0.02
    assert grid.bubble(everyone, 4) > 0.05  # that of the fill and the drain


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("named", "says"),
    [
        ({"microbatches": 9}, r"microbatches: expected 1 to 8 \(the samples of a batch\), got 9"),
        ({"cuts": (1, 3, 4)}, "cuts: expected 2 stages, one for each rank, got 4"),
        ({"two_versions": True}, "microbatches: expected 2 or more, as many as ranks, for two versions"),
    ],
)
def test_arguments_are_refused_on_all_ranks(comm, named, says):
    with pytest.raises(UsageError, match=says):
        PipeDream(comm, make_model(), **{"cuts": (3,), "batch": 8, **named})


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("params", "samples", "clip_norm", "says"),
    [
        (None, 0, 0.0, "train: samples: expected 1 or more, got 0"),
        (None, 8, 1.0, "train: expected an optimizer with clip_norm=0"),
        (3, 8, 0.0, "train: optimizer: expected [0-9]+ parameters, got shape .3,"),
    ],
)
def test_what_it_cannot_train(comm, params, samples, clip_norm, says):
    pipeline = PipeDream(comm, make_model(), (3,), batch=8)
    vector = pipeline.init(1) if params is None else np.zeros(params, np.float32)
    with pytest.raises(UsageError, match=says):
        pipeline.train(Optimizer(vector, options(clip_norm=clip_norm)), samples, lambda step: batch_of(step, 8))
    comm.Barrier()
    pipeline.close()


@pytest.mark.ranks(3)
def test_a_batch_of_a_wrong_size_is_an_error_on_all(comm):
    pipeline = PipeDream(comm, make_model(), CUTS[3], batch=8)
    optimizer = Optimizer(pipeline.init(1), options())

    def short(step):
        x, y = batch_of(step, 8)
        return (x[:7] if step == 2 else x), y

    with pytest.raises(UsageError, match="train: step 2: x: expected 8 samples on the first stage, got 7"):
        pipeline.train(optimizer, 80, short)
    comm.Barrier()
    pipeline.close()
