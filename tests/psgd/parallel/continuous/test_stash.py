"""Versions of the weights: which one a microbatch gets, and how many there are."""

import numpy as np
import pytest

from psgd.parallel.continuous.stash import Stash
from psgd.parallel.schedules import pipedream


def run(program, every, two_versions, apart=False):
    """Plays a program: steps add 1 to the weights, so that the weights are their version. Returns what passes saw."""
    params = np.zeros(3)
    used = pipedream.versions(program, every, two_versions)
    stash = Stash(params, used, apart)
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
    expected = [(each.kind, each.microbatch, used[each.microbatch]) for each in program if each.kind != "U"]
    assert seen == expected
    assert stash.steps == params[0]
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
