"""Versions of the weights: which one a microbatch gets, and how many there are."""

import numpy as np
import pytest

from psgd.parallel.continuous.stash import Copies, Stash
from psgd.parallel.schedules import pipedream


def run(program, every, two_versions, apart=False, copies=None, seen_at=None):
    """Plays a program: steps add 1 to the weights, so that the weights are their version. Returns what passes saw.

    With `seen_at`, a list, the memory of each pass's weights is added to it.
    """
    params = np.zeros(3)
    used = pipedream.versions(program, every, two_versions)
    stash = Stash(params, used, apart, copies)
    seen, memory = [], {}
    for each in program:
        if each.kind == "U":
            stash.keep(each.microbatch)
            params += 1
        else:
            given = stash.weights(each.microbatch)
            memory.setdefault(each.microbatch, given)
            assert not apart or (memory[each.microbatch] is given is not params)
            seen.append((each.kind, each.microbatch, given[0]))
            if seen_at is not None:
                seen_at.append(None if given is params else given.ctypes.data)
    expected = [(each.kind, each.microbatch, used[each.microbatch]) for each in program if each.kind != "U"]
    assert seen == expected
    assert stash.steps == params[0]
    stash.end()
    return stash, pipedream.kept(program, used)


@pytest.mark.parametrize(("every", "two_versions"), [(1, False), (3, False), (4, True), (5, True)])
def test_forward_and_backward_see_the_same_weights(every, two_versions):
    build = pipedream.build_two_versions if two_versions else pipedream.build
    for rank, program in enumerate(build(4, 23, every).programs):
        stash, most = run(program, every, two_versions)
        assert stash.most <= most == (2 if two_versions else min(most, 4 - rank))


@pytest.mark.parametrize(("every", "two_versions"), [(1, False), (3, False), (4, True)])
def test_apart_a_microbatch_has_the_same_memory_in_both_passes(every, two_versions):
    build = pipedream.build_two_versions if two_versions else pipedream.build
    for program in build(4, 23, every).programs:
        stash, most = run(program, every, two_versions, apart=True)
        assert stash.most <= most + 1


def test_no_copy_on_the_last_rank():
    stash, _ = run(pipedream.build(4, 9).programs[3], 1, False)
    assert stash.most == 1
    stash, _ = run(pipedream.build(4, 9).programs[0], 1, False)
    assert stash.most == 4


@pytest.mark.parametrize(("every", "two_versions"), [(1, False), (3, False), (4, True)])
@pytest.mark.parametrize("apart", [False, True])
def test_another_run_has_the_same_memory_for_the_same_passes(every, two_versions, apart):
    build = pipedream.build_two_versions if two_versions else pipedream.build
    for program in build(4, 24, every).programs:
        copies, first, second = Copies(), [], []
        stash, _ = run(program, every, two_versions, apart, copies, first)
        run(program, every, two_versions, apart, copies, second)
        assert first == second
        assert len(set(first) - {None}) <= stash.most


def test_the_lowest_free_copy_is_taken():
    copies, source = Copies(), np.arange(3.0)
    assert [copies.take(source + k) for k in range(3)] == [0, 1, 2]
    kept = copies.of(1)
    for number in (2, 0, 1):
        copies.give_back(number)
    assert [copies.take(source - k) for k in range(3)] == [0, 1, 2]
    assert copies.of(1) is kept and np.array_equal(kept, source - 1)
