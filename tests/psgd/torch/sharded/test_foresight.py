"""Which unit comes next."""

from psgd.torch.sharded.foresight import Foresight


def passes(foresight, order):
    foresight.begin()
    return [foresight.asked(unit) for unit in order]


def test_the_last_pass_says_what_comes_next():
    foresight = Foresight()
    assert passes(foresight, [0, 1, 2, 2, 1, 0]) == [None] * 6
    assert passes(foresight, [0, 1, 2, 2, 1, 0]) == [1, 2, 2, 1, 0, None]


def test_another_order_is_followed_from_where_it_fits():
    foresight = Foresight()
    passes(foresight, [0, 1, 2, 3])
    assert passes(foresight, [0, 2, 3, 1, 5]) == [1, 3, None, 2, None]
    assert passes(foresight, [0, 2, 3, 1, 5]) == [2, 3, 1, 5, None]


def test_a_pass_that_gathers_nothing_changes_nothing():
    foresight = Foresight()
    passes(foresight, [0, 1])
    foresight.begin()
    assert passes(foresight, [0, 1]) == [1, None]
