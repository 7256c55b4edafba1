"""Every verb that returns a request, non-blocking and persistent, against NumPy."""

import numpy as np
import pytest
from harness.oracle import communicator
from mpi4py import MPI

from psgd.collectives.started_verbs import StartedVerbs

VERBS = sorted(name for name in vars(StartedVerbs) if name[0] == "I" or name.endswith("_init"))


def arguments(verb, comm):
    """Buffers and what follows, where the result is, and what it must be."""
    size, rank = comm.size, comm.rank
    mine, blocks = np.arange(6.0) + 10 * rank, np.arange(6.0 * size) + 100 * rank
    total = sum(np.arange(6.0) + 10 * r for r in range(size))
    scattered = sum(np.arange(6.0 * size) + 100 * r for r in range(size))[6 * rank : 6 * rank + 6]
    gathered = np.concatenate([np.arange(6.0) + 10 * r for r in range(size)])
    name = verb.removesuffix("_init").lower().removeprefix("i")
    out, long = np.zeros(6), np.zeros(6 * size)
    counts = [6] * size
    known = {
        "allreduce": ((mine, out, MPI.SUM), out, total),
        "reduce": ((mine, out, MPI.SUM, size - 1), out, total if rank == size - 1 else np.zeros(6)),
        "reduce_scatter": ((blocks, out, counts, MPI.SUM), out, scattered),
        "reduce_scatter_block": ((blocks, out, MPI.SUM), out, scattered),
        "allgather": ((mine, long), long, gathered),
        "allgatherv": ((mine, [long, counts]), long, gathered),
        "bcast": ((mine, 0), mine, np.arange(6.0)),
        "barrier": ((), mine, mine.copy()),
    }
    return known[name]


def test_there_are_verbs_of_both_kinds():
    assert {verb[0] == "I" for verb in VERBS} == {True, False} and len(VERBS) > 10


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.both_mpis_whole("verb")
def test_it_does_what_its_blocking_form_does(comm, verb):
    with communicator(comm) as c:
        given, result, wanted = arguments(verb, comm)
        request = getattr(c, verb)(*given)
        if verb.endswith("_init"):
            request.Start()
        request.Wait()
        np.testing.assert_array_equal(result, wanted)
        if verb.endswith("_init"):
            request.Free()
