"""The samples ahead of a worker: told from how many it has drawn, whatever epoch it is in."""

import numpy as np

from psgd.data.sampler import order
from psgd.training.survival.ahead import SamplesAhead

SAMPLES, SEED, EPOCHS = 23, 5, 4


def share(epoch, index, parts):
    return order(SAMPLES, SEED, epoch)[index::parts].tolist()


def test_it_starts_with_its_share_of_the_first_epoch():
    ahead = SamplesAhead(SAMPLES, SEED, EPOCHS, (1, 3))
    assert ahead.horizon == 1  # the first batch may be under way
    ahead.reshare(1, (0, 1))
    assert ahead.rest().tolist() == share(0, 1, 3)


def test_whole_epochs_and_a_piece_are_behind_it():
    ahead, mine = SamplesAhead(SAMPLES, SEED, EPOCHS, (2, 3)), share(2, 2, 3)
    ahead.advance(2 * 7 + 3)
    assert ahead.horizon == 3
    ahead.reshare(3, (0, 1))
    assert ahead.rest().tolist() == mine[3:]
    ahead.advance(2 * 7 + 5)
    assert ahead.rest().tolist() == mine[5:]


def test_what_it_takes_over_comes_first_and_new_shares_later():
    ahead = SamplesAhead(SAMPLES, SEED, EPOCHS, (0, 2))
    ahead.advance(10)
    ahead.reshare(1, (0, 1))
    ahead.take_over(np.array([100, 101], np.int64))
    ahead.take_over(np.empty(0, np.int64))
    ahead.advance(11)
    assert ahead.rest().tolist() == [101, *share(0, 0, 2)[10:]]
    ahead.advance(12 + 2 + SAMPLES)  # its share, what it took over, and an epoch alone
    assert ahead.horizon == 3
    ahead.advance(12 + 2 + 3 * SAMPLES)
    assert ahead.horizon == EPOCHS + 1 and ahead.rest().size == 0
