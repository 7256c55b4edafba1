"""What a second MPI runs, and which part of the suite a test belongs to, told by fixtures, marks and names alone."""

import pytest
from harness import selection


class Case:
    """What the selection reads of one test."""

    def __init__(self, name, fixtures=("comm",), marks=(), **params):
        self.nodeid = f"tests/test_it.py::{name}[{'-'.join(map(str, params.values()))}]"
        self.fixturenames, self.marks = fixtures, {mark.name: mark for mark in marks}
        self.params = params

    def get_closest_marker(self, name):
        return self.marks.get(name)


@pytest.fixture(autouse=True)
def _params_of_cases(monkeypatch):
    monkeypatch.setattr(selection, "_params", lambda item: item.params)


def cases(count, *marks, letters="ab"):
    return [Case("test_f", marks=marks, letter=letters[i % len(letters)], number=i) for i in range(count)]


def numbers(items):
    return [item.params["number"] for item in selection.for_second_mpi(items)]


def test_of_many_cases_the_first_the_last_and_one_by_its_name():
    taken = numbers(cases(40))
    assert len(taken) == 3 and taken == sorted(taken) and taken[0] == 0 and taken[-1] == 39
    assert taken == numbers(cases(40)) != [0, 1, 39]
    among = sorted(cases(40), key=lambda case: -case.params["number"])[1:-1]
    others = numbers([cases(40)[0], *among, cases(40)[39]])
    assert sorted(others) == taken, "the choice is by names, not by places"
    assert numbers(cases(3)) == [0, 1, 2]


def test_a_mark_keeps_all_or_one_of_each_value():
    assert numbers(cases(40, pytest.mark.both_mpis_whole.mark)) == list(range(40))
    each = selection.for_second_mpi(cases(40, pytest.mark.both_mpis_whole("letter").mark, letters="abcdefgh"))
    assert {case.params["letter"] for case in each} == set("abcdefgh")
    assert len(each) <= 4 + 8


def test_it_takes_those_that_start_ranks_and_depend_on_the_mpi_on_the_most_ranks():
    plain, marked = Case("test_plain", fixtures=("tmp_path",)), Case("test_g", marks=[pytest.mark.one_mpi.mark])
    job = Case("test_job", fixtures=("job", "tmp_path"))
    few, most = (Case("test_h", comm=n) for n in (2, 5))
    few.nodeid, most.nodeid = ("tests/test_it.py::test_h[2ranks]", "tests/test_it.py::test_h[5ranks]")
    assert selection.for_second_mpi([plain, marked, few, job, most]) == [job, most]


def test_what_starts_ranks_is_one_part_and_the_rest_and_the_cluster_the_other():
    fixtures = {(): "rest", ("tmp_path",): "rest", ("comm",): "ranks", ("job",): "ranks", ("login", "comm"): "rest"}
    assert {each: selection.part_of(Case("test_f", each)) for each in fixtures} == fixtures
