import pytest

from psgd.kernels.errors import UsageError
from psgd.stragglers import Stragglers, check


def delays(text, worker=0, workers=4, steps=40, computed=0.01):
    slow = Stragglers(text, worker, workers)
    return [round(slow.delay_s(step, computed), 9) for step in range(steps)]


def test_nothing():
    assert set(delays("")) == {0}


def test_one_worker_takes_a_factor_longer():
    assert set(delays("slow:2:4", worker=2)) == {0.03}
    assert set(delays("slow:2:4", worker=1)) == {0}


def test_every_gradient_takes_at_least_so_long_before_the_factor():
    assert set(delays("compute:0.05,slow:0:2")) == {0.09}
    assert set(delays("compute:0.005")) == {0}


def test_rotating_stalls_hit_one_worker_at_a_time_and_each_at_its_share():
    hit = [[delay > 0 for delay in delays("slow:rotating:10:0.05", worker)] for worker in range(4)]
    assert [sum(steps) for steps in hit] == [2, 2, 2, 2]
    assert max(map(sum, zip(*hit, strict=True))) == 1
    assert set(delays("slow:rotating:10:0.05")) == {0, 0.09}


@pytest.mark.parametrize(
    "text",
    [
        "slow",
        "slow:1",
        "slow:x:2",
        "slow:1:0.5",
        "slow:4:2",
        "slow:1:nan",
        "slow:rotating:2",
        "slow:rotating:2:0",
        "slow:rotating:2:1.5",
        "compute:-1",
        "compute:inf",
        "fast:1:2",
    ],
)
def test_what_is_no_specification(text):
    with pytest.raises(UsageError, match="inject"):
        check(text, range(4))
