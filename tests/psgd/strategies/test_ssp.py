"""The decisions of `ssp`, driven by hand: `tests/psgd/server/test_record_replay.py` has it on real ranks."""

from harness.policies import push, restored, said

from psgd.strategies import ssp, sync


def released(entries):
    return [release for _, release, _ in said(entries)]


def test_nobody_is_further_ahead_than_the_bound():
    policy = ssp.create(2, staleness=2)
    assert released(policy.on_push(push(0, 1), 0.0)) == [[0]]
    assert released(policy.on_push(push(0, 2), 0.0)) == [[0]]
    assert released(policy.on_push(push(0, 3), 0.0)) == [[]]  # three steps, the other none
    assert released(policy.on_push(push(1, 1), 0.0)) == [[0, 1]]


def test_each_push_is_applied_as_a_share_of_all():
    (entry,) = ssp.create(4, staleness=1).on_push(push(2, 1), 0.0)
    assert [(m.worker, m.push, m.weight) for m in entry.group] == [(2, 1, 0.25)]


def test_a_worker_that_is_done_holds_nobody_up():
    policy = ssp.create(2, staleness=1)
    policy.on_push(push(0, 1), 0.0)
    assert released(policy.on_push(push(0, 2), 0.0)) == [[]]
    assert said(policy.on_done(1, 0.0)) == [([], [0], False)]
    assert said(policy.on_done(0, 0.0)) == []


def test_clocks_go_on_after_a_checkpoint():
    policy = restored(ssp.create(2, staleness=1), clocks=[5, 4])
    assert released(policy.on_push(push(0, 6), 0.0)) == [[]]
    assert released(policy.on_push(push(1, 5), 0.0)) == [[0, 1]]


def test_a_bound_of_none_is_sync():
    assert isinstance(ssp.create(3, staleness=0), sync.Synchronous)
