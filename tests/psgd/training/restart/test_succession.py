"""Who takes whose place."""

import pytest

from psgd.training.restart.succession import led, ordered


@pytest.mark.parametrize(
    ("places", "wanted", "order"),
    [
        ([0, 1, 2, None], 3, [0, 1, 2, 3]),  # nobody died
        ([1, 2, None, None], 3, [2, 0, 1, 3]),  # the first place goes to the first that stands by
        ([0, 3, None], 3, [0, 1, 2]),  # fewer act: who was behind moves up before those that stand by
        ([0, 2, 3], 2, [0, 1, 2]),  # and who is too many stands by
        ([None, None], 2, [0, 1]),
        ([0, 1], 0, [0, 1]),
    ],
)
def test_the_living_keep_their_places_and_others_take_those_of_the_dead(places, wanted, order):
    assert ordered(places, wanted) == order


def test_who_leads_comes_first_and_those_that_stand_by_last():
    assert led([None, 3, 1, 2, None], 3) == [3, 2, 1, 0, 4]
    assert led([0, 1], 0) == [0, 1]
