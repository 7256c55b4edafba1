"""The decisions of `sync`, driven by hand: `tests/psgd/server/test_record_replay.py` has it on real ranks."""

from harness.policies import push, restored, said

from psgd.strategies import sync


def test_a_group_waits_for_all_and_is_summed_in_worker_order():
    policy = sync.create(3)
    assert said(policy.on_push(push(2, 1), 0.0)) == []
    assert said(policy.on_push(push(0, 1), 0.0)) == []
    assert said(policy.on_push(push(1, 1), 0.0)) == [([(0, 1), (1, 1), (2, 1)], [0, 1, 2], False)]
    assert policy.fixed_order


def test_a_worker_that_is_done_is_waited_for_no_longer():
    policy = sync.create(3)
    policy.on_push(push(2, 1), 0.0)
    assert said(policy.on_done(0, 0.0)) == []
    assert said(policy.on_done(1, 0.0)) == [([(2, 1)], [2], False)]
    assert said(policy.on_push(push(2, 2), 0.0)) == [([(2, 2)], [2], False)]
    assert said(policy.on_done(2, 0.0)) == []


def test_a_push_without_samples_keeps_its_place():
    policy = sync.create(2)
    policy.on_push(push(1, 1, samples=0), 0.0)
    assert said(policy.on_push(push(0, 1), 0.0)) == [([(0, 1), (1, 1)], [0, 1], False)]


def test_after_a_checkpoint_nobody_waits():
    policy = restored(sync.create(2), clocks=[4, 4])
    assert said(policy.on_push(push(0, 5), 0.0)) == []
    assert said(policy.on_push(push(1, 5), 0.0)) == [([(0, 5), (1, 5)], [0, 1], False)]
