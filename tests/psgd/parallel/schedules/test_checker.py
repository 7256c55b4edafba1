"""Every schedule keeps its promises at all sizes, and the checker finds what breaks them."""

from dataclasses import replace
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psgd.parallel.schedules import catalog, grid
from psgd.parallel.schedules.checker import check
from psgd.parallel.schedules.instruction import Instruction
from psgd.parallel.schedules.rehearsal import DOUBLE, ScheduleFault, rehearse
from psgd.parallel.schedules.schedule import alive

RANKS, MICROBATCHES = st.integers(1, 8), st.integers(1, 32)


@st.composite
def schedules(draw):
    name = draw(st.sampled_from(catalog.NAMES))
    ranks = draw(RANKS)
    entry = catalog.SCHEDULES[name]
    chunks = draw(st.integers(2, 4)) if entry.chunks else 1
    every = 0 if entry.flushes else draw(st.integers(ranks if name.endswith("2bw") else 1, 12))
    return catalog.make(name, ranks, draw(MICROBATCHES), chunks, every)


@settings(max_examples=300, deadline=None)
@given(schedules())
def test_every_schedule_is_complete_and_ends(schedule):
    cells = check(schedule)
    assert len(cells) == sum(map(len, schedule.programs))


@settings(max_examples=200, deadline=None)
@given(schedules(), st.integers(0, 2**31), st.floats(0, 3))
def test_no_speed_of_ranks_or_messages_makes_a_deadlock(schedule, seed, transfer):
    cells = rehearse(schedule, lambda rank, each: 0.1 + crc32(f"{seed} {rank} {each}".encode()) % 50, transfer)
    assert len(cells) == sum(map(len, schedule.programs))


@settings(max_examples=100, deadline=None)
@given(RANKS, MICROBATCHES)
def test_in_flight_counts(ranks, microbatches):
    for name, limit in (
        ("gpipe", lambda rank: microbatches),
        ("1f1b", lambda rank: min(microbatches, ranks - rank)),
        ("pipedream", lambda rank: min(microbatches, ranks - rank)),
        ("zero-bubble", lambda rank: min(microbatches, ranks)),
    ):
        programs = catalog.make(name, ranks, microbatches).programs
        assert all(alive(program) <= limit(rank) for rank, program in enumerate(programs)), name


@settings(max_examples=100, deadline=None)
@given(RANKS, MICROBATCHES, st.integers(2, 4))
def test_bubbles_are_the_known_ones(ranks, microbatches, chunks):
    share = (ranks - 1) / (microbatches + ranks - 1)
    for name in ("gpipe", "1f1b"):
        assert grid.bubble(check(catalog.make(name, ranks, microbatches)), ranks) == pytest.approx(share), name
    if microbatches >= ranks:
        work = 3 * microbatches
        zero = grid.span(rehearse(catalog.make("zero-bubble", ranks, microbatches), DOUBLE))
        assert zero == work + ranks - 1  # 1F1B: work + 3 * (ranks - 1)
        turns = grid.span(rehearse(catalog.make("interleaved", ranks, microbatches, chunks), DOUBLE))
        assert turns == chunks * work + 3 * (ranks - 1)  # in times of a stage that is `chunks` times smaller


def broken(schedule, rank, change):
    program = list(schedule.programs[rank])
    change(program)
    programs = list(schedule.programs)
    programs[rank] = tuple(program)
    return replace(schedule, programs=tuple(programs))


def swap(i, j):
    def change(program):
        program[i], program[j] = program[j], program[i]

    return change


@pytest.mark.parametrize(
    ("rank", "change", "says"),
    [
        (1, lambda program: program.pop(), "rank 1: missing or too much: .*'X', 2"),
        (0, lambda program: program.append(program[0]), "rank 0: F0 twice"),
        (1, swap(0, 1), "rank 1: microbatch 0: expected F before B"),
        (0, swap(4, 5), "rank 0: expected gradients added ascending, got .0, 2, 1."),
        (0, swap(0, 1), "made as .1, 0, 2., needed as .0, 1, 2."),
        (0, swap(2, 3), "rank 0: expected at most 2 microbatches in flight, got 3"),
        (0, lambda program: program.append(Instruction("U", 2)), "rank 0: U2: a step that may not be here"),
        (0, lambda program: program.append(Instruction("F", 0, 1)), "expected chunks from 0 to 0"),
    ],
)
def test_each_fault_is_found(rank, change, says):
    with pytest.raises(ScheduleFault, match=says):
        check(broken(catalog.make("1f1b", 2, 3), rank, change))


def test_a_run_that_does_not_flush_needs_its_steps():
    run = catalog.make("pipedream", 2, 3)
    with pytest.raises(ScheduleFault, match="rank 0: no step with the gradients after microbatch 1"):
        check(broken(run, 0, lambda program: program.pop()))
    with pytest.raises(ScheduleFault, match="rank 0: U0: a step that may not be here"):
        check(broken(run, 0, lambda program: program.insert(0, Instruction("U", 0))))


def test_too_few_programs():
    with pytest.raises(ScheduleFault, match="expected 2 programs"):
        check(replace(catalog.make("1f1b", 2, 3), programs=()))


def test_a_deadlock_is_found():
    late = broken(replace(catalog.make("1f1b", 2, 3), in_flight_limit=(3, 3)), 1, swap(1, 2))
    check(late)
    early = broken(replace(late, in_flight_limit=(3, 3)), 0, swap(1, 2))
    with pytest.raises(ScheduleFault, match="1f1b: deadlock: rank 0 at B0, rank 1 at F1"):
        check(early)
