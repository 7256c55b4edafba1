"""Edges between stages: enough slots that no schedule's sender waits, and the same order at both ends."""

import numpy as np
import pytest

from psgd.collectives.mpi.wait import Waiter
from psgd.parallel.schedules import catalog
from psgd.parallel.schedules.instruction import place, stage
from psgd.parallel.stages import links

TRAINS = [name for name, entry in catalog.SCHEDULES.items() if entry.trains and entry.flushes]


def of_stage(schedule, at, kinds):
    rank, chunk = place(at, schedule.ranks)
    return [each.microbatch for each in schedule.programs[rank] if each.chunk == chunk and each.kind in kinds]


@pytest.mark.parametrize("name", TRAINS)
def test_both_ends_of_an_edge_have_one_order(name):
    for ranks in (1, 2, 3, 4, 8):
        for m in (1, 2, 3, 5, 8, 16):
            schedule = catalog.make(name, ranks, m, 2 if catalog.SCHEDULES[name].chunks else 1)
            for at in range(schedule.stages - 1):
                for kinds in ("F", "BX"):
                    assert of_stage(schedule, at, kinds) == of_stage(schedule, at + 1, kinds), (ranks, m, at, kinds)


@pytest.mark.parametrize("name", TRAINS)
def test_a_sender_always_finds_a_slot(name):
    """However the ranks' progress interleaves: messages sent and not freed, at their worst, by one rank at a time."""
    for ranks in (2, 3, 4):
        for m in (1, 2, 3, 5, 8):
            chunks = 2 if catalog.SCHEDULES[name].chunks else 1
            counts = links.depths(name, ranks, chunks, m)
            for eager in range(ranks):
                worst = most_in_use(catalog.make(name, ranks, m, chunks), eager)
                assert (np.array(worst) <= np.array(counts)).all(), (ranks, m, eager, worst, counts)


def most_in_use(schedule, eager):
    """Runs all ranks, the `eager` one and those above it whenever they can, and counts the messages of each edge."""
    done, at = set(), [0] * schedule.ranks
    in_use = [[0, 0] for _ in range(schedule.stages - 1)]
    most = [[0, 0] for _ in range(schedule.stages - 1)]
    splits = any(each.kind == "W" for program in schedule.programs for each in program)
    order = [(eager + rank) % schedule.ranks for rank in range(schedule.ranks)]
    while any(position < len(program) for position, program in zip(at, schedule.programs, strict=True)):
        for rank in order:
            if at[rank] == len(schedule.programs[rank]):
                continue
            each = schedule.programs[rank][at[rank]]
            here = stage(rank, each.chunk, schedule.ranks)
            other = here - 1 if each.kind == "F" else here + 1
            kind = "F" if each.kind == "F" else "B"
            needs = each.kind != "W" and 0 <= other < schedule.stages
            if needs and (other, kind, each.microbatch) not in done:
                continue
            break
        else:
            raise AssertionError("deadlock")
        done.add((here, kind, each.microbatch))
        at[rank] += 1
        ends = each.kind == ("W" if splits else "B")
        if each.kind == "F" and here < schedule.stages - 1:
            in_use[here][0] += 1
        if ends:
            if here > 0:
                in_use[here - 1][0] -= 1
            if here < schedule.stages - 1:
                in_use[here][1] -= 1
        if each.kind in ("B", "X") and here > 0:
            in_use[here - 1][1] += 1
        for now, worst in zip(in_use, most, strict=True):
            worst[:] = [max(pair) for pair in zip(now, worst, strict=True)]
    return most


@pytest.mark.ranks(2)
def test_links_of_neighbours_and_of_one_rank_with_itself(comm):
    private, waiter = comm.Dup(), Waiter(True)
    # Stages 0 to 3 go round two ranks; the last edge is bent back, so that a rank has both ends of it.
    every = links.edges([(3,), (2, 2), (5,)], 2, [(2, 1)] * 3)
    own = links.Edge(9, (1, 3), (1, 4), False, 2, (4,))
    found = links.connect(private, [*every, own], 4, np.float64)
    assert sorted(found) == ([0, 2] if comm.rank == 0 else [1, 3, 4])
    for edge in [*every, own]:
        name_in, name_out = ("dy", "dx") if edge.backward else ("x", "y")
        message = np.full((3, *edge.shape), edge.number + 0.5)
        if edge.sender[0] == comm.rank:
            assert getattr(found[edge.sender[1]], name_out).send(message, 9)
        if edge.receiver[0] == comm.rank:
            inlet = getattr(found[edge.receiver[1]], name_in)
            waiter.until(inlet.arrived)
            slot, array, total = inlet.take(3)
            assert np.array_equal(array, message) and total == 9
            inlet.release(slot)
    private.Barrier()
    for each in found.values():
        each.close()
    assert links.bytes_of(every, 0, 4, np.float64) == 8 * 4 * (3 + 2 * 4 + 5)
    private.Free()
