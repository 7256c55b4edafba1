"""Pipeline x tensor x data: every product of 8 ranks has the bits of one process that cuts and sums alike."""

import time

import numpy as np
import pytest
from harness.hybrid import FACTORISATIONS, Hybrid, alone

RULES = ["sgd", "momentum", "nesterov", "adam"]
CLIP = 0.3


def of_rank_0(comm, make):
    """What one rank has computed, on all. The others sleep meanwhile: they share its cores."""
    made = make() if comm.rank == 0 else None
    ready = comm.Ibarrier()
    while not ready.Test():
        time.sleep(2e-3)
    return comm.bcast(made)


def compare(comm, sizes, steps, rule, schedule="1f1b", microbatches=4, clip=CLIP, **options):
    run = Hybrid(comm, sizes, steps, schedule, microbatches, rule=rule, clip_norm=clip, **options)
    run.check(of_rank_0(comm, lambda: alone(sizes, steps, rule, clip, schedule, microbatches)))
    return run


def test_these_are_all_products():
    assert len(FACTORISATIONS) == 10 == len(set(FACTORISATIONS))
    assert all(np.prod(sizes) == 8 for sizes in FACTORISATIONS)


@pytest.mark.ranks(8, timeout=200)
@pytest.mark.parametrize("sizes", FACTORISATIONS, ids=lambda sizes: "x".join(map(str, sizes)))
def test_every_product_of_8_ranks_with_every_rule(comm, sizes):
    for rule in RULES:
        compare(comm, sizes, 100, rule, strategy="allreduce")
