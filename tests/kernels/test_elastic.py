"""The elastic pull against NumPy: the same operations in the same order give the same bits."""

import threading

import numpy as np
import pytest

from psgd.kernels import elastic

SIZES = [0, 1, 7, 63, 64, 65, 1023, 4097]
RATE = 0.3


class Case:
    """Vectors of distinct values between guards."""

    def __init__(self, n, dtype):
        ramp = np.arange(1, n + 1)
        self.whole = [np.full(n + 2, 99 + i, dtype) for i in range(4)]
        self.displacement, self.params, self.centre, self.other = (each[1 : n + 1] for each in self.whole)
        self.params[:] = np.sin(ramp)
        self.centre[:] = np.cos(3 * ramp)
        self.x, self.c = self.params.copy(), self.centre.copy()
        self.pull = np.asarray(RATE, dtype) * (self.x - self.c)
        self.words = np.array([0, 5, -1], np.int64)
        self.at = self.words.ctypes.data

    def check(self, centre=None, other=None):
        """The displacement is from the old values, the parameters are not touched, the guards stand."""
        np.testing.assert_array_equal(self.displacement, self.pull)
        np.testing.assert_array_equal(self.params, self.x)
        np.testing.assert_array_equal(self.centre, self.c if centre is None else centre)
        if other is not None:
            np.testing.assert_array_equal(self.other, other)
        for i, each in enumerate(self.whole):
            assert each[0] == each[-1] == 99 + i


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", SIZES)
def test_each_way_to_pull(n, dtype):
    case = Case(n, dtype)
    elastic.stretch(case.displacement, case.params, case.centre, RATE)
    case.check()

    case = Case(n, dtype)
    elastic.forward(case.displacement, case.params, case.centre, case.other, RATE)
    case.check(other=case.c + case.pull)

    case = Case(n, dtype)
    assert elastic.exchange(case.displacement, case.params, case.centre, RATE, case.at) == 5
    case.check(centre=case.c + case.pull)
    assert case.words.tolist() == [0, 6, -1]

    case = Case(n, dtype)
    assert elastic.exchange_locked(case.displacement, case.params, case.centre, RATE, case.at, 2, 1) == 5
    case.check(centre=case.c + case.pull)
    assert case.words.tolist() == [0, 6, -1]


def test_a_lock_that_another_has_lets_nothing_happen():
    case = Case(65, np.float64)
    case.words[elastic.LOCK] = 4
    before = case.displacement.copy()
    assert elastic.exchange_locked(case.displacement, case.params, case.centre, RATE, case.at, 3, 1000) == -1
    case.pull = before
    case.check()
    assert case.words.tolist() == [4, 5, -1]


def test_exchanges_under_the_lock_are_one_after_the_other():
    """Three threads at once: the order that they were told, replayed, gives the same bits."""
    n, times, workers = 3000, 150, 3
    words = np.zeros(2, np.int64)
    centre = np.cos(np.arange(n))
    start = centre.copy()
    pulls = [np.empty(n) for _ in range(workers)]
    params = [np.sin(np.arange(n) * (w + 1)) for w in range(workers)]
    orders = [[] for _ in range(workers)]

    def work(worker):
        while len(orders[worker]) < times:
            place = elastic.exchange_locked(
                pulls[worker], params[worker], centre, RATE, words.ctypes.data, worker, 1000
            )
            if place >= 0:
                orders[worker].append(place)
                params[worker] -= pulls[worker]

    threads = [threading.Thread(target=work, args=(w,)) for w in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    who = {place: worker for worker, order in enumerate(orders) for place in order}
    assert sorted(who) == list(range(workers * times))
    expected, xs = start.copy(), [np.sin(np.arange(n) * (w + 1)) for w in range(workers)]
    for place in range(workers * times):
        pull = RATE * (xs[who[place]] - expected)
        expected += pull
        xs[who[place]] -= pull
    np.testing.assert_array_equal(centre, expected)
    for mine, replayed in zip(params, xs, strict=True):
        np.testing.assert_array_equal(mine, replayed)
