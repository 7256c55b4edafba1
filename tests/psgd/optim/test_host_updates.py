"""Updates in threads: each part once, the front first, errors where they are waited for."""

import gc
import threading

import numpy as np
import pytest

from psgd.optim import host_updates, rules
from psgd.optim.host_updates import HostUpdates
from psgd.optim.optimizer import OptimizerOptions
from psgd.optim.schedules import constant

N = 1000


def opened(updates, rule, n=N, seed=0):
    rng = np.random.default_rng(seed)
    params, grads = (rng.normal(size=n).astype(np.float32) for _ in range(2))
    optimizer = OptimizerOptions(rule, constant(0.1)).create(params)
    updates.open(optimizer, grads)
    return optimizer, params, grads


@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov", "adam"])
def test_parts_in_any_order_have_the_bits_of_the_whole(monkeypatch, name):
    monkeypatch.setattr(host_updates, "PIECE", 37)
    updates, rule = HostUpdates(4), rules.create(name, weight_decay=0.01)
    _, params, grads = opened(updates, rule)
    alone, expected = opened(HostUpdates(1), rule)[:2]
    done = []
    for step in range(1, 6):
        for part in (range(600, N), range(599, 600), range(10, 599), range(10)):
            updates.submit(part, 0.1, 0.5, step)
        updates.wait()
        alone.update(expected, grads, alone.state, 0.1, 0.5, step)
        np.testing.assert_array_equal(params, expected)
        done.append(params.copy())
    assert not np.array_equal(done[0], done[-1])
    assert [len(part) for part in updates.parts(100)] == [37, 37, 26]
    updates.close()


def test_squares_of_parts_are_those_of_the_whole(monkeypatch):
    monkeypatch.setattr(host_updates, "PIECE", 37)
    updates = HostUpdates(3)
    told = []
    updates.on_done = told.append
    optimizer, _, grads = opened(updates, rules.sgd())
    for _ in range(2):
        for part in (range(500, N), range(500)):
            updates.add_squares(part)
        assert optimizer.options.total(updates.squares()) == optimizer.options.sum_of_squares(grads)
        grads *= 3
    assert told == []


def test_what_waits_is_taken_from_the_front_and_told_before_it_is_waited_for():
    begun, go, order, told = threading.Event(), threading.Event(), [], []

    def update(params, grad, state, lr, scale, step):
        if params.size:
            begun.set()
            assert go.wait(10)
            order.append(int(params[0]))

    updates = HostUpdates(4)
    updates.on_done = lambda part: told.append((part.start, len(order)))
    optimizer = OptimizerOptions(rules.sgd()._replace(update=update, name="own"), constant(0.1))
    params = np.arange(100.0)
    updates.open(optimizer.create(params), np.zeros(100))
    updates.submit(range(90, 100), 0.1, 1.0, 1)
    assert begun.wait(10)  # a rule of the user's own has one thread, which has this one
    for start in (60, 20, 0, 40):
        updates.submit(range(start, start + 20), 0.1, 1.0, 1)
    updates.wait(range(100, 200))  # of nothing
    go.set()
    updates.wait(range(15, 25))
    assert [start for start, _ in told[:3]] == [90, 0, 20]
    updates.wait()
    assert order == [90, 0, 20, 40, 60]
    assert [count for _, count in told] == [1, 2, 3, 4, 5]


def test_a_part_is_not_begun_again_before_it_is_done():
    running, most, lock = [0], [0], threading.Lock()

    def update(params, grad, state, lr, scale, step):
        if params.size:
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            params += 1
            with lock:
                running[0] -= 1

    updates = HostUpdates(4)
    params = np.zeros(10)
    options = OptimizerOptions(rules.sgd()._replace(update=update), constant(0.1))  # by its name it may have threads
    updates.open(options.create(params), np.zeros(10))
    for step in range(50):
        updates.submit(range(10), 0.1, 1.0, step)
    updates.close()
    assert params.tolist() == [50] * 10 and most == [1]


def test_an_error_comes_to_whoever_waits():
    def update(params, grad, state, lr, scale, step):
        if params.size:
            raise ZeroDivisionError("no")

    updates = HostUpdates(1)
    options = OptimizerOptions(rules.sgd()._replace(update=update), constant(0.1))
    updates.open(options.create(np.zeros(10)), np.zeros(10))
    updates.submit(range(5), 0.1, 1.0, 1)
    with pytest.raises(ZeroDivisionError):
        updates.wait(range(5))
    with pytest.raises(ZeroDivisionError):
        updates.submit(range(5, 10), 0.1, 1.0, 1)


def test_threads_end_with_their_owner():
    updates = HostUpdates(1)
    before = set(threading.enumerate())
    opened(updates, rules.sgd())
    (thread,) = set(threading.enumerate()) - before
    del updates
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()
