"""Programs that differ by rank, drawn at random: every difference ends in one error on all ranks."""

import random

import numpy as np
import pytest
from harness.oracle import communicator, two_nodes

from psgd.collectives.dispatch import stalls
from psgd.kernels.errors import Error

ALGORITHMS = {
    "Allreduce": [None, "ring", "recursive_doubling", "native"],
    "Bcast": [None, "binomial", "chain", "native"],
    "Allgather": [None, "ring", "native"],
    "Reduce": [None, "binomial", "native"],
}
PLACES = {
    "messages": {"PSGD_SHARED": "0", "PSGD_PROGRESS": "0"},
    "a thread": {"PSGD_SHARED": "0", "PSGD_PROGRESS": "1"},
    "one node": {"PSGD_PROGRESS": "0"},
    "two nodes": {"PSGD_PROGRESS": "0"},
}


def drawn(rng, size, verb=None):
    verb = verb or rng.choice(list(ALGORITHMS))
    lane = rng.choice(["", "I", "_init"]) if verb in {"Allreduce", "Allgather"} else rng.choice(["", "_init"])
    length, dtype = rng.choice([1, 100, 30000]), rng.choice(["f8", "f4"])
    return verb, lane, rng.choice(ALGORITHMS[verb]), length, dtype, rng.randrange(size) if verb[0] in "BR" else 0


def changed(rng, size, call):
    """Another one of the same verb."""
    while (other := drawn(rng, size, call[0])) == call:
        pass
    return other


def programs(rng, size):
    """One list of calls for each rank, not all the same, and no two of them in another order only."""
    base = [drawn(rng, size) for _ in range(rng.choice([1, 2]))]
    odd = rng.randrange(size)
    made = [list(base) for _ in range(size)]
    at = rng.randrange(len(base))
    if rng.random() < 0.5:
        made[odd][at] = changed(rng, size, base[at])
    else:  # one call more, that its root is done with at once
        made[odd].insert(at, ("Bcast", "", rng.choice([None, "binomial", "chain"]), 5, "f4", odd))
        if rng.random() < 0.7:
            last = changed(rng, size, base[-1])
            for rank in range(size):
                if rank != odd:
                    made[rank][-1] = last
    return made


def carry_out(c, call):
    verb, lane, algorithm, length, dtype, root = call
    ones, into = np.ones(length, dtype), np.zeros(length * (c.size if verb == "Allgather" else 1), dtype)
    arguments = (ones,) if verb == "Bcast" else (ones, into)
    given = {"algorithm": algorithm, **({"root": root} if verb in {"Bcast", "Reduce"} else {})}
    name = f"I{verb.lower()}" if lane == "I" else f"{verb}{lane}"
    made = getattr(c, name)(*arguments, **given)
    if lane == "I":
        made.Wait()
    elif lane:
        made.run()


@pytest.mark.ranks(2, 3, timeout=40)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("seed", [1, 2])
def test_every_difference_is_one_error(comm, place, seed):
    before, stalls._COMPARE_S = stalls._COMPARE_S, 0.1
    try:
        differ(comm, place, random.Random(100 * seed + comm.size))
    finally:
        stalls._COMPARE_S = before


def differ(comm, place, rng):
    """Several cases, each with a communicator of its own."""
    for _ in range(4):
        calls = programs(rng, comm.size)
        if place == "two nodes":
            with two_nodes():
                c = communicator(comm, **PLACES[place]).__enter__()
        else:
            c = communicator(comm, **PLACES[place]).__enter__()
        try:
            for call in calls[comm.rank]:
                carry_out(c, call)
            c.Allreduce(np.ones(77), np.zeros(77))  # who is done meets the others here
            said = "nothing"
        except Error as error:
            said = f"{type(error).__name__}: {error}"
        everyone = comm.allgather(said)
        assert set(everyone) == {everyone[0]} and "ContractError: ranks disagree" in said, (calls, everyone)
