"""Which deaths end a process."""

from psgd.runtime.ulfm.tolerance import Tolerance


def test_a_death_that_was_not_allowed_ends_it():
    tolerance = Tolerance()
    assert tolerance.ends_at([2]) == {2}
    tolerance.allow([1, 2])
    assert tolerance.ends_at([2]) == set() and tolerance.ends_at([0, 2]) == {0}
    tolerance.allow([2])
    assert tolerance.ends_at([1, 2]) == {1}


def test_the_living_are_all_until_somebody_says_otherwise():
    tolerance = Tolerance()
    assert tolerance.living("all") == "all"
    tolerance.survivors = "some"
    assert tolerance.living("all") == "some"
