"""Pipelines on real ranks: the bits of a sequential program that cuts alike, by every schedule; counters; refusals."""

import itertools
import os

import numpy as np
import pytest
from harness import HARNESS

from psgd.kernels.errors import ContractError, DataError, PeerLostError, UsageError
from psgd.nn.layers.dropout import Dropout
from psgd.nn.layers.embedding import Embedding, Unembedding
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.models import gpt
from psgd.nn.relu import ReLU
from psgd.nn.reshape import Flatten
from psgd.nn.residual import Residual
from psgd.parallel.pipeline import Pipeline
from psgd.parallel.schedules import catalog

LAYERS = (
    Flatten(),
    Linear(12, relu=True),
    Linear(9),
    ReLU(),
    Linear(11, relu=True),
    Linear(10, relu=True),
    Linear(8),
    Linear(5),
)
SHAPE, CLASSES = (2, 3), 5
CUTS = {1: (), 2: (4,), 3: (1, 5), 4: (2, 4, 6), 6: (1, 2, 4, 5, 6), 8: (1, 2, 3, 4, 5, 6, 7)}
WHOLE_BATCH = [name for name, entry in catalog.SCHEDULES.items() if entry.trains and entry.flushes]


def make_model(dtype=np.float32):
    return Model(LAYERS, SHAPE, dtype)


def samples(n, step, dtype=np.float32):
    rng = np.random.default_rng([n, step])
    return rng.standard_normal((n, *SHAPE)).astype(dtype), rng.integers(0, CLASSES, n)


class Sequential:
    """The same in one process: parts in a row, one microbatch after another, added in the schedule's order."""

    def __init__(self, cuts, size, descending, seed=1, model=None, key=None):
        model, self.key = model or make_model(), key
        ends = (0, *cuts, len(model.layers))
        self.parts = [model.cut(a, b) for a, b in itertools.pairwise(ends)]
        self.params = [part.init(seed) for part in self.parts]
        self.grads = [np.full_like(vector, np.nan) for vector in self.params]
        for part, params, grads in zip(self.parts, self.params, self.grads, strict=True):
            part.bind(params, grads)
        self.contexts = [part.context(size, wants_dx=index > 0) for index, part in enumerate(self.parts)]
        self.size, self.descending = size, descending

    def gradient(self, x, y):
        n, losses = len(x), {}
        order = range(-(-n // self.size))
        for number, k in enumerate(reversed(order) if self.descending else order):
            z = x[k * self.size : (k + 1) * self.size]
            for part, ctx in zip(self.parts, self.contexts, strict=True):
                if self.key is not None:
                    ctx.draw(self.key, np.arange(100, 100 + n)[k * self.size : (k + 1) * self.size])
                z = part.forward(ctx, z)
            dy, losses[k] = self.parts[-1].loss(self.contexts[-1], y[k * self.size : (k + 1) * self.size], batch_size=n)
            for part, ctx in zip(self.parts[::-1], self.contexts[::-1], strict=True):
                dy = part.backward(ctx, dy, accumulate=number > 0)
        return sum(losses[k] for k in order)

    def update(self):
        for vector, gradient in zip(self.params, self.grads, strict=True):
            np.subtract(vector, np.float32(0.1) * gradient, out=vector)

    def views(self, vectors):
        found = {}
        for part, vector in zip(self.parts, vectors, strict=True):
            found |= part.layout.views(vector)
        return found


def chunked(ranks, schedule):
    return 2 if catalog.SCHEDULES[schedule].chunks else 1


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("microbatches", [1, 2, 4, 5])
@pytest.mark.parametrize("schedule", WHOLE_BATCH)
def test_steps_have_the_bits_of_the_sequential_program(comm, schedule, microbatches):
    take_steps(comm, schedule, microbatches)


EIGHT = f"""
import importlib.util, sys
sys.path.insert(0, {str(HARNESS.parent)!r})
spec = importlib.util.spec_from_file_location("pipelines", {__file__!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from mpi4py import MPI
for schedule in ("gpipe", "1f1b", "zero-bubble"):
    for microbatches in (4, 10):
        module.take_steps(MPI.COMM_WORLD, schedule, microbatches)
print("same bits")
"""


@pytest.mark.one_mpi
def test_eight_stages_have_the_bits_of_the_sequential_program(job):
    result = job(8, EIGHT, timeout=100)
    assert result.returncode == 0 and result.stdout.count("same bits") == 8, result.stderr


def take_steps(comm, schedule, microbatches):
    """Trains for some steps, with ragged last microbatches and fewer than ranks, beside the sequential program."""
    ranks, batch = comm.Get_size(), 10
    chunks = chunked(ranks, schedule)
    cuts = CUTS[ranks * chunks]
    order = catalog.make(schedule, ranks, microbatches, chunks).gradient_order
    with Pipeline(comm, make_model(), cuts, schedule, batch=batch, microbatches=microbatches) as pipeline:
        oracle = Sequential(cuts, -(-batch // microbatches), order == "descending")
        params = pipeline.init(1)
        grads = np.full_like(params, np.nan)
        pipeline.bind(params, grads)
        for step, n in enumerate((10, 10, 9, 10, 1, 3, 7)):
            x, y = samples(n, step)
            ready = []
            loss = pipeline.gradient(
                n,
                x if comm.Get_rank() == 0 else None,
                y if comm.Get_rank() == ranks - 1 else None,
                ready.append,
            )
            assert loss == oracle.gradient(x, y), step
            whole = oracle.views(oracle.grads)
            for name, view in pipeline.layout.views(grads).items():
                assert np.array_equal(view, whole[name]), (step, name)
            stops = [pipeline.layout.size, *(part.start for part in ready)]
            assert [part.stop for part in ready] == stops[:-1] and stops[-1] == 0
            params -= np.float32(0.1) * grads
            oracle.update()
        counts = {-(-n // pipeline.microbatch) for n in (10, 9, 1, 3, 7)}
        limit = max(catalog.make(schedule, ranks, m, chunks).in_flight_limit[comm.Get_rank()] for m in counts)
        assert 0 < pipeline.counters.in_flight_max <= limit
        assert pipeline.counters.gradients == 7
        names = comm.allgather(list(pipeline.layout.views(params)))
        assert sorted(itertools.chain(*names)) == sorted(make_model().layout.views(make_model().init(0)))


TIED = (
    Embedding(5, 4),
    Linear(4, relu=True),
    Unembedding(5, tied="embedding1.weight"),
    Linear(4, relu=True),
    Flatten(),
    Linear(5),
    Residual((Linear(3), Linear(5))),
)


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero-bubble"])
def test_a_parameter_of_several_stages_has_the_sum_of_its_gradients(comm, schedule):
    ranks, model = comm.Get_size(), Model(TIED, (3,))
    chunks = chunked(ranks, schedule)
    cuts = {1: (), 2: (2,), 3: (1, 4), 4: (1, 2, 4), 6: (1, 2, 3, 4, 5)}[ranks * chunks]
    order = catalog.make(schedule, ranks, 3, chunks).gradient_order
    with Pipeline(comm, model, cuts, schedule, batch=6, microbatches=3) as pipeline:
        oracle = Sequential(cuts, 2, order == "descending", model=model)
        grads = np.empty(pipeline.layout.size, np.float32)
        params = pipeline.init(1)
        pipeline.bind(params, grads)
        x, y = np.random.default_rng(5).integers(0, 5, (2, 6, 3))
        x, y, ready = x.astype(np.float32), y[:, 0], []
        assert pipeline.gradient(6, x, y, ready.append) == oracle.gradient(x, y)
        assert ready[0].stop == pipeline.layout.size and ready[-1].start == 0
        whole = oracle.views(oracle.grads)
        first, second = whole["embedding1.weight"], whole["unembedding1.weight"]
        together = first if first is second or np.shares_memory(first, second) else first + second
        seen = 0
        for name, view in pipeline.layout.views(grads).items():
            is_tied = name.endswith("embedding1.weight")
            seen += is_tied
            assert np.array_equal(view, together if is_tied else whole[name]), name
        names = sum(comm.allgather(seen))
        assert names == 2
        values = pipeline.layout.views(params)
        table = model.layout.views(model.init(1))["embedding1.weight"]
        assert all(np.array_equal(v, table) for name, v in values.items() if name.endswith("embedding1.weight"))


@pytest.mark.ranks(2)
def test_dropout_draws_by_the_samples_numbers(comm):
    model = Model((Linear(6), Dropout(0.5), Linear(6, relu=True), Dropout(0.5), Linear(5)), (4,))
    with Pipeline(comm, model, (2,), batch=6, microbatches=3) as pipeline:
        grads = np.empty(pipeline.layout.size, np.float32)
        pipeline.bind(pipeline.init(1), grads)
        x, y = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32), np.arange(6) % 5
        losses = []
        for key in (7, 8, 7):
            oracle = Sequential((2,), 2, False, model=model, key=key)
            pipeline.draw(key, np.arange(100, 106))
            losses.append(pipeline.gradient(6, x, y))
            assert losses[-1] == oracle.gradient(x, y)
            whole = oracle.views(oracle.grads)
            assert all(np.array_equal(v, whole[name]) for name, v in pipeline.layout.views(grads).items())
        assert losses[0] == losses[2] != losses[1]
        model.bind(model.init(1))
        right, loss = model.evaluate(model.context(6), x, y)
        assert pipeline.evaluate(6, x, y) == (right, pytest.approx(loss))
        with pytest.raises(UsageError, match="it needs draw"):
            pipeline.gradient(6, x, y)
    comm.Barrier()


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("schedule", WHOLE_BATCH)
@pytest.mark.parametrize("n", [1, 8, 100])
def test_evaluation_is_the_models(comm, n, schedule):
    ranks, model = comm.Get_size(), make_model()
    chunks = chunked(ranks, schedule)
    with Pipeline(comm, model, CUTS[ranks * chunks], schedule, batch=8, microbatches=4) as pipeline:
        pipeline.bind(pipeline.init(3), None)
        x, y = samples(n, 0)
        assert pipeline.evaluate(0, None, None) == (0, 0.0)
        right, loss = pipeline.evaluate(n, x, y)
        model.bind(model.init(3))
        expected = model.evaluate(model.context(2), x, y)
        assert right == expected[0] and loss == pytest.approx(expected[1], rel=1e-6)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("schedule", WHOLE_BATCH)
def test_messages_where_memory_is_not_shared(comm, schedule):
    ranks = comm.Get_size()
    chunks = chunked(ranks, schedule)
    cuts, order = CUTS[ranks * chunks], catalog.make(schedule, ranks, 4, chunks).gradient_order
    os.environ["PSGD_SHARED"] = "0"
    try:
        pipeline = Pipeline(comm, make_model(), cuts, schedule, batch=8, microbatches=4)
    finally:
        del os.environ["PSGD_SHARED"]
    with pipeline:
        oracle = Sequential(cuts, 2, order == "descending")
        params = pipeline.init(1)
        grads = np.empty_like(params)
        pipeline.bind(params, grads)
        for step, n in enumerate((8, 8, 5, 8)):
            x, y = samples(n, step)
            assert pipeline.gradient(n, x, y) == oracle.gradient(x, y)
            whole = oracle.views(oracle.grads)
            assert all(np.array_equal(v, whole[name]) for name, v in pipeline.layout.views(grads).items())
        right, loss = pipeline.evaluate(100, *samples(100, 0))
        assert 0 <= right <= 100 and loss > 0


@pytest.mark.ranks(3)
def test_an_error_of_one_stage_is_raised_on_all(comm):
    pipeline = Pipeline(comm, make_model(), CUTS[3], batch=6, microbatches=3)
    params = pipeline.init(0)
    pipeline.bind(params, np.empty_like(params))
    x, y = samples(6, 0)
    y[3] = CLASSES
    with pytest.raises(DataError, match="label"):
        pipeline.gradient(6, x, y)
    comm.Barrier()
    pipeline.close()


@pytest.mark.ranks(2)
def test_wrong_samples_are_refused_on_all(comm):
    pipeline = Pipeline(comm, make_model(), CUTS[2], batch=6, microbatches=3)
    params = pipeline.init(0)
    pipeline.bind(params, np.empty_like(params))
    x, y = samples(6, 0)
    with pytest.raises(UsageError, match="gradient: x: expected 6 samples on the first stage, got 5"):
        pipeline.gradient(6, x[:5], y)
    comm.Barrier()
    pipeline.close()


@pytest.mark.ranks(3)
@pytest.mark.parametrize("numbers", [(6, 4, 6), (5, 6, 6), (6, 6, 1)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_other_numbers_of_samples_are_refused_on_all(comm, numbers, schedule):
    pipeline = Pipeline(comm, make_model(), CUTS[3], schedule, batch=6, microbatches=3)
    params = pipeline.init(0)
    pipeline.bind(params, np.empty_like(params))
    n = numbers[comm.Get_rank()]
    with pytest.raises(ContractError, match="all ranks must pass the same number of samples, got"):
        pipeline.gradient(n, *samples(n, 0))
    comm.Barrier()
    pipeline.close()


@pytest.mark.ranks(3)
def test_a_failed_pipeline_leaves_nothing_to_the_next_one(comm):
    """All fail at once, so nobody hears of the others: what they have told must not reach another communicator."""
    x, y = samples(6, 0)
    for _ in range(8):
        pipeline = Pipeline(comm, make_model(), CUTS[3], batch=6, microbatches=3)
        params = pipeline.init(0)
        pipeline.bind(params, np.empty_like(params))
        with pytest.raises(UsageError, match="gradient: expected 1 to 6 samples"):
            pipeline.gradient(7, x, y)
        comm.Barrier()
        pipeline.close()
        with Pipeline(comm, make_model(), CUTS[3], batch=6, microbatches=3) as pipeline:
            pipeline.bind(params, np.empty_like(params))
            pipeline.gradient(6, x, y)
            comm.Barrier()


def compute_or_fail(pipeline, fails):
    with pipeline:
        if fails:
            raise ZeroDivisionError
        pipeline.gradient(6, *samples(6, 0))


@pytest.mark.ranks(3)
def test_a_rank_that_leaves_ends_the_others_waits(comm):
    own = ZeroDivisionError if comm.Get_rank() == 1 else PeerLostError
    pipeline = Pipeline(comm, make_model(), CUTS[3], batch=6, microbatches=3)
    params = pipeline.init(0)
    pipeline.bind(params, np.empty_like(params))
    with pytest.raises(own) as caught:
        compute_or_fail(pipeline, comm.Get_rank() == 1)
    if own is PeerLostError:
        assert str(caught.value) == "pipeline: rank 1 failed; that rank's own output says why"
    comm.Barrier()
    pipeline.close()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("schedule", ["gpipe", "zero-bubble"])
def test_activations_that_are_computed_again(comm, schedule):
    order = catalog.make(schedule, 2, 3).gradient_order
    model = make_model()
    with Pipeline(
        comm, model, (4,), schedule, batch=6, microbatches=3, recompute=lambda stage: stage.recomputed([range(1, 3)])
    ) as pipeline:
        oracle = Sequential((4,), 2, order == "descending", model=model)
        grads = np.empty(pipeline.layout.size, np.float32)
        pipeline.bind(pipeline.init(1), grads)
        x, y = samples(6, 0)
        assert pipeline.gradient(6, x, y) == oracle.gradient(x, y)
        whole = oracle.views(oracle.grads)
        assert all(np.array_equal(v, whole[name]) for name, v in pipeline.layout.views(grads).items())


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_a_transformer_with_one_table_at_both_ends(comm, schedule):
    model = Model(gpt.layers((8,), 11, layers=2, width=8, heads=2), (8,))
    cuts = {2: (3,), 3: (2, 4)}[comm.Get_size()]
    with Pipeline(comm, model, cuts, schedule, batch=6, microbatches=3) as pipeline:
        oracle = Sequential(cuts, 2, False, model=model)
        grads = np.empty(pipeline.layout.size, np.float32)
        pipeline.bind(pipeline.init(1), grads)
        x, y = np.random.default_rng(5).integers(0, 11, (2, 6, 8))
        assert pipeline.gradient(6, x.astype(np.float32), y) == oracle.gradient(x.astype(np.float32), y)
        whole = oracle.views(oracle.grads)
        table = [name for name in whole if "embedding" in name]
        assert len(table) == 2
        for name, view in pipeline.layout.views(grads).items():
            expected = whole[table[0]] + whole[table[1]] if name in table else whole[name]
            assert np.array_equal(view, expected), name
        model.bind(model.init(1))
        right, loss = model.evaluate(model.context(2), x.astype(np.float32), y)
        assert pipeline.evaluate(6, x.astype(np.float32), y) == (pytest.approx(right), pytest.approx(loss))


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "2f2b"}, "expected one of"),
        ({"schedule": "inference"}, "expected one that computes a gradient a batch"),
        ({"microbatches": 7}, "microbatches: expected 1 to 6"),
        ({"cuts": (4, 4)}, "no stage is empty"),
        ({"cuts": (8,)}, "no stage is empty"),
        ({"cuts": (2, 4)}, "expected 2 stages, or a multiple, for 2 ranks, got 3"),
        ({"cuts": ()}, "expected 2 stages"),
    ],
)
def test_refusals(comm, options, message):
    given = {"cuts": (4,), "batch": 6, "microbatches": 2} | options
    with pytest.raises(UsageError, match=message):
        Pipeline(comm, make_model(), given.pop("cuts"), **given)


@pytest.mark.ranks(3)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "gpipe"}, 'the same schedule, got "1f1b" on rank.s. 0, 2; "gpipe" on rank.s. 1'),
        ({"cuts": (1, 4)}, "the same cuts"),
        ({"batch": 5}, "the same batch"),
        ({"microbatches": 1}, "the same microbatches"),
        ({"model": 7}, "the same model"),
    ],
)
def test_stages_that_differ_are_refused_on_all(comm, options, message):
    given = {"cuts": (2, 5), "batch": 6, "microbatches": 2, "schedule": "1f1b"}
    model = make_model()
    if comm.Get_rank() == 1:
        given |= options
        if given.pop("model", None):
            model = Model((*LAYERS[:-2], Linear(7), LAYERS[-1]), SHAPE)
    with pytest.raises(ContractError, match=message):
        Pipeline(comm, model, given.pop("cuts"), **given)


BODY = """
import os, sys, time
import numpy as np
from mpi4py import MPI
from psgd.kernels.errors import PeerLostError
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.models import gpt
from psgd.parallel.pipeline import Pipeline
comm = MPI.COMM_WORLD
pipeline = Pipeline(comm, Model((Linear(4), Linear(4), Linear(4)), (4,)), (1, 2), batch=4, microbatches=2)
params = pipeline.init(0)
pipeline.bind(params, np.empty_like(params))
x, y = np.zeros((4, 4), np.float32), np.zeros(4, np.int64)
pipeline.gradient(4, x, y)
comm.Barrier()
if comm.rank == 1:
    os.kill(os.getpid(), 9)
try:
    for _ in range(100):
        pipeline.gradient(4, x, y)
except PeerLostError as error:
    print(f"rank {comm.rank}: {error}", file=sys.stderr, flush=True)
    time.sleep(1)
    os._exit(9)
"""


def test_a_killed_stage_is_an_error_on_the_others(job):
    result = job(3, BODY, timeout=40, ulfm=True)
    assert result.returncode != 0
    for rank in (0, 2):
        assert f"rank {rank}: pipeline: the process of rank 1 ended" in result.stderr
