"""The decisions of `async`, driven by hand: `tests/psgd/server/test_record_replay.py` has it on real ranks."""

from harness.policies import push, restored, said

from psgd.strategies import async_


def test_each_push_is_applied_and_released_at_once():
    policy = async_.create(3)
    assert not policy.fixed_order
    for worker, number in ((1, 1), (1, 2), (0, 1), (2, 1), (1, 3)):
        assert said(policy.on_push(push(worker, number), 0.0)) == [([(worker, number)], [worker], False)]
    assert said(policy.on_done(1, 0.0)) == []
    assert said(restored(policy).on_push(push(0, 2), 0.0)) == [([(0, 2)], [0], False)]
