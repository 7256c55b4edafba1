"""PipeDream: steps between passes, which weights each pass uses, and how many versions are kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psgd.kernels.errors import UsageError
from psgd.parallel.schedules import pipedream


def text(program):
    return " ".join(map(str, program))


def test_a_step_follows_each_gradient():
    first, last = pipedream.build(2, 3).programs
    assert text(first) == "F0 F1 B0 U0 F2 B1 U1 B2 U2"
    assert text(last) == "F0 B0 U0 F1 B1 U1 F2 B2 U2"
    assert pipedream.versions(first, 1) == [0, 0, 1]
    assert pipedream.versions(last, 1) == [0, 1, 2]


def test_a_step_of_several_microbatches():
    first, last = pipedream.build(2, 5, 2).programs
    assert text(last) == "F0 B0 F1 B1 U1 F2 B2 F3 B3 U3 F4 B4 U4"
    assert pipedream.versions(first, 2) == [0, 0, 0, 1, 1]
    assert pipedream.versions(first, 2, two_versions=True) == [0, 0, 0, 0, 1]
    assert pipedream.versions(last, 2, two_versions=True) == [0, 0, 0, 0, 1]


@given(st.integers(1, 8), st.integers(1, 40))
def test_stashed_weights_are_as_many_as_ranks_to_come(ranks, microbatches):
    for rank, program in enumerate(pipedream.build(ranks, microbatches).programs):
        used = pipedream.versions(program, 1)
        assert used == [max(0, k - (ranks - rank) + 1) for k in range(microbatches)]
        assert pipedream.kept(program, used) <= ranks - rank


@given(st.integers(1, 8), st.integers(1, 40), st.integers(0, 5))
def test_two_versions_are_enough(ranks, microbatches, more):
    every = ranks + more
    for program in pipedream.build_two_versions(ranks, microbatches, every).programs:
        used = pipedream.versions(program, every, two_versions=True)
        newest = pipedream.versions(program, every)
        assert used == [max(0, k // every - 1) for k in range(microbatches)]
        assert all(wanted <= there for wanted, there in zip(used, newest, strict=True))
        assert pipedream.kept(program, used) <= 2


def test_two_versions_need_a_step_as_long_as_the_pipeline():
    with pytest.raises(UsageError, match=r"as many microbatches a step as ranks \(4\), got 3; pipedream"):
        pipedream.build_two_versions(4, 8, 3)
