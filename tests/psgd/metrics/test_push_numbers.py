"""Numbered pushes: what is lost or repeated is told apart from what is not."""

import pytest

from psgd.metrics.push_numbers import PushNumbers, lost, repeated, together


def worker(index, sent, acknowledged):
    numbers = PushNumbers(2)
    numbers.sent, numbers.acknowledged = sent, acknowledged
    return numbers.of_worker(index)


def server(index, applied, newest):
    numbers = PushNumbers(2)
    numbers.applied, numbers.newest = applied, newest
    return numbers.of_server(index)


def test_all_by_worker():
    found = together([server(1, [5, 7], [5, 7]), server(0, [5, 6], [5, 6]), worker(1, 7, 6)], 2)
    assert (found["sent"], found["acknowledged"], found["applied"]) == ([None, 7], [None, 6], [5, 6])
    assert [each["server"] for each in found["servers"]] == [0, 1]
    assert lost(found) == 0 and repeated(found) == []
    assert together([worker(0, 1, 1)], 2) is None


@pytest.mark.parametrize(
    ("applied", "newest", "gone", "said"),
    [
        ([5, 4], [5, 4], 3, 0),  # a server stands behind what it has answered
        ([5, 6], [5, 7], 1, 1),  # one in between was left out
        ([6, 7], [5, 7], 0, 1),  # one was applied twice
    ],
)
def test_what_is_wrong(applied, newest, gone, said):
    found = together([server(0, [5, 7], [5, 7]), server(2, applied, newest), worker(0, 5, 5), worker(1, 7, 7)], 2)
    assert lost(found) == gone and len(repeated(found)) == said


def test_a_server_that_resumes_counts_on():
    numbers = PushNumbers(2)
    numbers.resume([3, 4])
    numbers.applied[0] += 1
    assert numbers.of_server(0) == {"server": 0, "applied": [4, 4], "newest": [3, 4]}
