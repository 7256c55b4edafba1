"""The decisions of `softsync`, driven by hand: `tests/psgd/server/test_record_replay.py` has it on real ranks."""

import pytest
from harness.policies import push, restored, said

from psgd.kernels.errors import UsageError
from psgd.strategies import softsync


def test_a_group_closes_with_the_last_of_its_pushes_whoever_made_them():
    policy = softsync.create(3, softsync=3)
    assert said(policy.on_push(push(1, 1), 0.0)) == [([(1, 1)], [1], True)]
    assert said(policy.on_push(push(1, 2), 0.0)) == [([(1, 2)], [1], True)]
    assert said(policy.on_push(push(0, 1), 0.0)) == [([(0, 1)], [0], False)]
    assert said(policy.on_push(push(2, 1), 0.0)) == [([(2, 1)], [2], True)]


def test_a_push_without_samples_is_none_of_them():
    policy = softsync.create(2, softsync=2)
    policy.on_push(push(0, 1), 0.0)
    assert said(policy.on_push(push(1, 1, samples=0), 0.0)) == [([(1, 1)], [1], True)]
    assert said(policy.on_push(push(1, 2), 0.0)) == [([(1, 2)], [1], False)]


def test_what_is_left_at_the_end_is_a_smaller_group():
    policy = softsync.create(2, softsync=2)
    policy.on_push(push(0, 1), 0.0)
    assert said(policy.on_done(0, 0.0)) == []
    assert said(policy.on_done(1, 0.0)) == [([], [], False)]
    policy = softsync.create(1, softsync=1)
    policy.on_push(push(0, 1), 0.0)
    assert said(policy.on_done(0, 0.0)) == []


def test_a_group_that_is_open_at_a_checkpoint_goes_on():
    policy = restored(softsync.create(3, softsync=3), open_contributions=2)
    assert said(policy.on_push(push(0, 9), 0.0)) == [([(0, 9)], [0], False)]


@pytest.mark.parametrize("wrong", [0, 4, -1])
def test_the_size_is_one_to_the_workers(wrong):
    with pytest.raises(UsageError, match="softsync: expected"):
        softsync.create(3, softsync=wrong)
