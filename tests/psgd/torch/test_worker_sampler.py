"""The sampler for DataLoaders: psgd's order, each sample once an epoch, also where an epoch is resumed."""

import itertools
import json

import numpy as np
import pytest

import psgd
from psgd.data import sampler as psgds
from psgd.kernels.errors import UsageError

torch = pytest.importorskip("torch")


def flat(parts):
    return list(itertools.chain.from_iterable(parts))


def crew(n, workers, **options):
    return [psgd.torch.Sampler(n, (w, workers), **options) for w in range(workers)]


@pytest.mark.parametrize(
    ("n", "workers", "batch"), [(1, 1, 1), (5, 2, 2), (12, 3, 4), (13, 4, 5), (3, 5, 2), (100, 3, 7)]
)
def test_loaders_give_what_psgd_trains_on(n, workers, batch):
    data = torch.arange(n) * 10
    for w, ours in enumerate(crew(n, workers, seed=7)):
        loader = torch.utils.data.DataLoader(data, batch_size=batch, sampler=ours)
        own = psgds.Sampler(n, workers, w, batch, 7)
        for epoch in (0, 1, 5):
            ours.set_epoch(epoch)
            expected = [own.batch(epoch, step) for step in range(own.steps)]
            got = [each.numpy() for each in loader]
            assert len(loader) == len(got) and sum(map(len, got)) == len(ours)
            for theirs, mine in zip([each for each in expected if each.size], got, strict=True):
                np.testing.assert_array_equal(mine, theirs * 10)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("n", [1, 7, 64, 101])
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_each_sample_once_an_epoch(n, workers, shuffle):
    every = crew(n, workers, seed=1, shuffle=shuffle)
    orders = []
    for epoch in range(2):
        for each in every:
            each.set_epoch(epoch)
        given = [list(each) for each in every]
        assert sorted(flat(given)) == list(range(n))
        assert [len(each) for each in every] == [len(part) for part in given]
        orders.append(given)
    assert (orders[0] == orders[1]) == (not shuffle or n == 1)
    if not shuffle:
        assert given[0] == list(range(0, n, workers))


@pytest.mark.parametrize(("n", "workers"), [(7, 2), (8, 2), (3, 4), (101, 3)])
def test_drop_last_makes_parts_equal(n, workers):
    given = [list(each) for each in crew(n, workers, drop_last=True)]
    assert [len(part) for part in given] == [n // workers] * workers
    assert len(set(flat(given))) == n // workers * workers
    whole = [list(each) for each in crew(n, workers)]
    assert all(part == longer[: n // workers] for part, longer in zip(given, whole, strict=True))


def some_of(samplers, counts):
    """What each gives until it is stopped."""
    given = []
    for each, count in zip(samplers, counts, strict=True):
        walk = iter(each)
        given.append([next(walk) for _ in range(count)])
    return given


@pytest.mark.parametrize("others", [[1], [2], [5], [4, 1], [2, 3, 2]])
def test_an_epoch_is_resumed_with_any_number_of_workers(others):
    n, given, samplers, counts = 53, [], crew(53, 3, seed=4), [6, 6, 6]
    for each in samplers:
        each.set_epoch(2)
    given += some_of(samplers, counts)
    for workers in others:
        state = json.loads(json.dumps(samplers[0].state_dict()))
        if len(samplers) == 1:
            state = [state]
        samplers = crew(n, workers, seed=4)
        for each in samplers:
            each.load_state_dict(state)
            each.set_epoch(2)
        left = n - sum(map(len, given))
        assert [len(each) for each in samplers] == [len(range(w, left, workers)) for w in range(workers)]
        given += some_of(samplers, [2] * workers)
    state = [each.state_dict() for each in samplers]
    for each in samplers:
        each.load_state_dict(state)
        given.append(list(each))
    assert sorted(flat(given)) == list(range(n))
    for each in samplers:
        each.set_epoch(3)
    assert sorted(flat(map(list, samplers))) == list(range(n))


def test_workers_that_had_taken_unequally_many_hand_in_all_states():
    before = crew(40, 3)
    given = some_of(before, [1, 9, 4])
    states = [each.state_dict() for each in before]
    after = crew(40, 2)
    for each in after:
        each.load_state_dict(reversed(states))
    rest = [list(each) for each in after]
    assert sorted(flat(given + rest)) == list(range(40))
    left = [k for k in psgds.order(40, 0, 0).tolist() if k not in flat(given)]
    assert rest == [left[0::2], left[1::2]]


def test_a_loader_that_fetches_ahead_says_how_many_were_trained_on():
    ours = psgd.torch.Sampler(range(20), (0, 2), seed=3)
    given = list(ours)
    again = psgd.torch.Sampler(range(20), (0, 2), seed=3)
    again.load_state_dict(ours.state_dict(taken=4))
    assert list(again) == given[4:]
    assert list(ours) == given, "without a state it begins anew"


@pytest.mark.ranks(3)
def test_the_places_of_communicators_and_connections(comm):
    from psgd import collectives

    with collectives.Communicator(comm) as ours:
        for place in (comm, ours):
            sampler = psgd.torch.Sampler(10, place)
            assert (sampler.worker, sampler.workers) == (comm.rank, 3)
    with psgd.connect(comm, np.zeros(3), strategy="sync", servers=1) as ps:
        sampler = psgd.torch.Sampler(10, ps)
        assert (sampler.worker, sampler.workers) == (comm.rank - 1, 2)
        assert sampler.worker == ps.worker


def test_what_is_wrong_is_refused():
    for arguments in ((0, (0, 1)), (5, (2, 2)), (5, (0, 0))):
        with pytest.raises(UsageError, match="expected samples and workers of 1 or more"):
            psgd.torch.Sampler(*arguments)
    with pytest.raises(UsageError, match=r"workers: expected a communicator, what psgd.connect gives, or .* got int"):
        psgd.torch.Sampler(5, 2)
    one, two = crew(9, 2)
    with pytest.raises(UsageError, match="taken: expected 0 to 5 samples, got 6"):
        one.state_dict(6)
    with pytest.raises(UsageError, match="expected a state of seed=1, got 0"):
        psgd.torch.Sampler(9, (0, 2), seed=1).load_state_dict(one.state_dict())
    with pytest.raises(UsageError, match="expected a state of samples=8, got 9"):
        psgd.torch.Sampler(8, (0, 2)).load_state_dict(one.state_dict())
    with pytest.raises(UsageError, match=r"expected states of 2 workers, got those of \[0, 0\]"):
        one.load_state_dict([one.state_dict(), one.state_dict()])
    two.set_epoch(1)
    with pytest.raises(UsageError, match="expected states of one epoch"):
        one.load_state_dict([one.state_dict(), two.state_dict()])
