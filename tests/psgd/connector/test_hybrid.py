"""Pipeline x tensor x data: every product of 8 ranks has the bits of one process that cuts and sums alike."""

import functools
import time

import numpy as np
import pytest
from harness.hybrid import FACTORISATIONS, Alone, Hybrid

RULES = ["sgd", "momentum", "nesterov", "adam"]
CLIP = 0.3


def named(sizes):
    return "x".join(map(str, sizes))


def of_rank_0(comm, make):
    """What one rank has computed, on all. The others sleep meanwhile: they share its cores."""
    made = make() if comm.rank == 0 else None
    ready = comm.Ibarrier()
    while not ready.Test():
        time.sleep(2e-3)
    return comm.bcast(made)


def compare(comm, sizes, steps, rule, schedule="1f1b", microbatches=4, clip=CLIP, **options):
    run = Hybrid(comm, sizes, steps, schedule, microbatches, rule=rule, clip_norm=clip, **options)
    run.check(of_rank_0(comm, lambda: Alone(rule, clip).train(sizes, 0, steps, schedule, microbatches).ended))
    return run


def test_these_are_all_products():
    assert len(FACTORISATIONS) == 10 == len(set(FACTORISATIONS))
    assert all(np.prod(sizes) == 8 for sizes in FACTORISATIONS)


@pytest.mark.one_mpi
@pytest.mark.ranks(8, timeout=200)
@pytest.mark.parametrize("sizes", FACTORISATIONS, ids=named)
def test_every_product_of_8_ranks_with_every_rule(comm, sizes):
    """A hundred steps with one rule, another one in the next product, and some with the others."""
    for number, rule in enumerate(RULES):
        long = number == FACTORISATIONS.index(tuple(sizes)) % len(RULES)
        compare(comm, tuple(sizes), 100 if long else 15, rule, strategy="allreduce")


def test_the_norm_is_above_the_largest():
    """Else nothing above would be clipped."""
    clipped, free = (Alone("sgd", clip).train((2, 2, 1), 0, 20).ended[0] for clip in (CLIP, 0.0))
    assert all(not np.array_equal(clipped[name], free[name]) for name in free)


@pytest.mark.ranks(8, timeout=100)
@pytest.mark.parametrize(
    ("sizes", "schedule", "microbatches"),
    [
        ((4, 2, 1), "gpipe", 4),
        ((2, 2, 2), "gpipe", 10),
        ((2, 2, 2), "interleaved", 4),
        ((4, 1, 2), "interleaved", 4),
        ((4, 2, 1), "zero-bubble", 4),
        ((8, 1, 1), "zero-bubble", 10),
        ((8, 1, 1), "1f1b", 1),
        ((2, 4, 1), "gpipe", 1),
    ],
)
def test_other_schedules_one_microbatch_and_fewer_than_stages(comm, sizes, schedule, microbatches):
    compare(comm, sizes, 20, "adam", schedule, microbatches, strategy="allreduce")


@pytest.mark.ranks(1, 2, 3, 4)
def test_smaller_worlds(comm):
    for sizes in {(comm.size, 1, 1), (1, comm.size, 1), (1, 1, comm.size)}:
        compare(comm, sizes, 30, "momentum", strategy="allreduce")


@pytest.mark.ranks(8, timeout=100)
@pytest.mark.parametrize("sizes", [(2, 1, 2), (1, 2, 2), (2, 2, 1)], ids=named)
def test_each_piece_has_its_own_server(comm, sizes):
    """Of the ranks along data the first serves: two pieces of four ranks each have three workers, four pieces one."""
    pipe, tensor, _ = sizes
    workers = 8 // (pipe * tensor) - 1
    run = Hybrid(comm, (pipe, tensor, workers + 1), 20, strategy="sync", servers=1, rule="nesterov", clip_norm=CLIP)
    run.check(of_rank_0(comm, lambda: Alone("nesterov", CLIP).train((pipe, tensor, workers), 0, 20).ended))


@pytest.mark.one_mpi
@pytest.mark.ranks(8, timeout=200)
@pytest.mark.parametrize("before", [(2, 2, 2), (1, 8, 1)], ids=named)
def test_every_product_resumes_what_one_has_saved(comm, before, tmp_path):
    options = {"strategy": "allreduce", "rule": "adam", "clip_norm": CLIP, "checkpoint_dir": tmp_path}
    Hybrid(comm, before, 10, checkpoint_every=10, **options)
    for sizes in FACTORISATIONS:
        run = Hybrid(comm, sizes, 20, resume=True, **options)
        # Another number of workers begins its own count of steps, as it does without pieces.
        assert run.began == (10 if sizes[2] == before[2] else 0)
        run.check(of_rank_0(comm, functools.partial(on_from, before, sizes, run.began)))


def on_from(before, sizes, began):
    return Alone("adam", CLIP).train(before, 0, 10).train(sizes, began, 20).ended
