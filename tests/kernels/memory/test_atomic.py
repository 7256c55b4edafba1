"""Words that are read and written in one piece: nothing is lost between threads that run at the same time."""

import threading

import numpy as np
import pytest

from psgd.kernels.jit import kernel
from psgd.kernels.memory import atomic


@kernel
def add_up(address: int, times: int, value: int) -> int:
    """The sum of what stood there before each addition."""
    seen = 0
    for _ in range(times):
        seen += atomic.fetch_and_add(address, value)
    return seen


@kernel
def add_under_lock(lock: int, plain: np.ndarray, times: int, name: int) -> int:
    """Adds to a plain word; returns how often the lock was not this one's when it was given back."""
    wrong = 0
    for _ in range(times):
        while not atomic.compare_and_swap(lock, 0, name):
            atomic.pause()
        plain[0] += 1
        wrong += not atomic.compare_and_swap(lock, name, 0)
    return wrong


@kernel
def swap(address: int, expected: int, value: int) -> bool:
    return atomic.compare_and_swap(address, expected, value)


def in_threads(*calls):
    results = [None] * len(calls)

    def run(place, function, arguments):
        results[place] = function(*arguments)

    threads = [threading.Thread(target=run, args=(i, *call)) for i, call in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def word_at(words, index):
    return words.ctypes.data + 8 * index


@pytest.mark.parametrize("value", [1, -3, 2**40])
def test_fetch_and_add_gives_each_value_once(value):
    words = np.array([7, 5, 9], np.int64)
    add_up(word_at(words, 1), 0, value)
    times = 200_000
    seen = in_threads(*[(add_up, (word_at(words, 1), times, value))] * 3)
    steps = 3 * times
    assert words.tolist() == [7, 5 + steps * value, 9]
    total = 5 * steps + value * (steps * (steps - 1) // 2)
    assert (sum(seen) - total) % 2**64 == 0  # each old value was seen by one addition only


def test_compare_and_swap_writes_only_over_what_was_expected():
    words = np.array([-1, 4, -1], np.int64)
    assert not swap(word_at(words, 1), 3, 8)
    assert words.tolist() == [-1, 4, -1]
    assert swap(word_at(words, 1), 4, -(2**62))
    assert words.tolist() == [-1, -(2**62), -1]
    assert not swap(word_at(words, 1), 4, 8)


def test_compare_and_swap_makes_a_lock():
    lock, plain = np.zeros(1, np.int64), np.zeros(1, np.int64)
    add_under_lock(word_at(lock, 0), plain, 0, 1)
    wrong = in_threads(*[(add_under_lock, (word_at(lock, 0), plain, 100_000, name)) for name in (1, 2)])
    assert wrong == [0, 0]
    assert plain[0] == 200_000
    assert lock[0] == 0
