"""Several shards as one: they take the steps of each one alone, and one more is filled from where it was."""

import numpy as np
import pytest

from psgd.kernels.exact_squares import squares
from psgd.optim import rules, schedules
from psgd.optim.optimizer import OptimizerOptions
from psgd.server.replicas.held_shards import HeldShards
from psgd.server.replicas.holders import Holders
from psgd.server.shard import Shard

PARTS = [range(0, 10), range(10, 20), range(20, 24)]
OPTIONS = OptimizerOptions(rules.adam(), schedules.constant(0.1))


def held(server, lost=(), options=OPTIONS):
    params = np.zeros(24)

    def make(shard):
        part = PARTS[shard]
        return Shard(params[part.start : part.stop], options, segment=4, start=part.start)

    return HeldShards(params, PARTS, make, server, Holders(3, lost))


def push(shards, gradient, closes=True):
    """Takes a step; the segments in the order in which they were emitted."""
    emitted = []

    def fetch(worker, segment):
        part = shards.ranges[segment]
        return gradient[part.start : part.stop]

    if closes:
        shards.apply([(0, 3, 1.0)], fetch, lambda segment: None, emitted.append)
    else:
        shards.add((0, 3, 1.0), fetch)
    return emitted


def test_all_that_is_held_takes_each_step_and_what_stands_by_comes_last():
    shards, whole = held(1), Shard(np.zeros(24), OPTIONS, segment=24)
    assert shards.ranges == [range(10, 14), range(14, 18), range(18, 20), range(0, 4), range(4, 8), range(8, 10)]
    assert shards.answered == 3
    for seed in range(3):
        gradient = np.random.default_rng(seed).normal(size=24)
        assert push(shards, gradient) == list(range(6))
        whole.apply([(0, 3, 1.0)], lambda worker, segment, g=gradient: g, lambda segment: None, lambda segment: None)
    np.testing.assert_array_equal(shards.params[:20], whole.params[:20])
    assert (shards.version, shards.samples, shards.lr, shards.open_samples) == (3, 9, 0.1, 0)
    assert not shards.params[20:].any()


@pytest.mark.parametrize("closes", [True, False])
def test_another_shard_continues_where_its_holder_stands(closes):
    first, second = held(0), held(1)  # 0 holds 2 and 0, 1 holds 0 and 1
    gradients = np.random.default_rng(1).normal(size=(3, 24))
    for shards in (first, second):
        push(shards, gradients[0])
        push(shards, gradients[1], closes)
    source, target = first.state(2), second.add_shard(2)
    assert sorted(source.tensors) == sorted(target.tensors) and source.facts == target.facts
    for name, tensor in source.tensors.items():
        target.tensors[name][:] = tensor
    after = Holders(3, [2])
    second.hold(after)
    push(first, gradients[2])
    push(second, gradients[2])
    np.testing.assert_array_equal(second.params[20:], first.params[20:])
    assert second.answered == 3 and len(second.ranges) == 7


def test_what_is_restored_goes_on_as_what_was_saved():
    first, again = held(1), held(1)
    gradients = np.random.default_rng(1).normal(size=(3, 24))
    push(first, gradients[0])
    push(first, gradients[1], closes=False)
    saved = {
        f"{shard}.{name}": array.copy() for shard in first.held for name, array in first.state(shard).tensors.items()
    }
    again.restore(saved, first.saved().facts)
    for shards in (first, again):
        push(shards, gradients[2])
    np.testing.assert_array_equal(again.params, first.params)
    assert (again.version, again.samples) == (first.version, first.samples)


def test_clipping_goes_by_all_that_is_held_and_by_what_others_add():
    clips = OptimizerOptions(rules.adam(), schedules.constant(0.1), clip_norm=0.5)
    shards, whole = held(1, options=clips), Shard(np.zeros(24), clips, segment=24)
    gradient = np.random.default_rng(1).normal(size=24)
    others = squares(gradient[PARTS[2].start :])
    shards.add_up = lambda holders, own: sum(own.values(), others)
    push(shards, gradient)
    whole.apply([(0, 3, 1.0)], lambda worker, segment: gradient, lambda segment: None, lambda segment: None)
    np.testing.assert_array_equal(shards.params[:20], whole.params[:20])
