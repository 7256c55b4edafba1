"""Which settings of EASGD are stable: the bounds against the maps themselves, and how others are refused."""

import numpy as np
import pytest

import psgd
from psgd.kernels.errors import Error, UsageError
from psgd.strategies.easgd.force import Force

ORDERS = ["sync", "round-robin", "async", "hogwild"]


def round_robin_map(workers, eta, a, period=1):
    """One round at curvature 1 as a matrix on (x_0, ..., x_P-1, xc): each worker in turn steps and exchanges."""
    whole = np.eye(workers + 1)
    for i in range(workers):
        local, meet = np.eye(workers + 1), np.eye(workers + 1)
        local[i, i] = (1 - eta) ** (period - 1)
        meet[i, i], meet[i, -1] = 1 - eta - a, a
        meet[-1, i], meet[-1, -1] = a, 1 - a
        whole = meet @ local @ whole
    return whole


def radius(matrix):
    return np.abs(np.linalg.eigvals(matrix)).max()


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 7, 8, 9])
def test_the_round_robin_bound_is_where_the_composed_map_turns_unstable(workers):
    for eta in (0.05, 0.1, 0.5, 1.0, 1.5, 1.9):
        bound = Force(workers, None, "round-robin", together=False).largest(eta)
        assert bound == pytest.approx((4 - 2 * eta) / (4 - eta))
        for period in (1, 2, 5):
            for share in (0.0, 0.1, 0.5, 0.9, 0.999):
                assert radius(round_robin_map(workers, eta, share * bound, period)) <= 1 + 1e-12
        if workers % 2:  # an even number of workers may go a little beyond: each turns the sign of xc once
            assert radius(round_robin_map(workers, eta, 1.01 * bound)) > 1
    assert radius(round_robin_map(workers, 2.01, 1e-9)) > 1


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_beyond_the_bound_the_real_rule_diverges(factor):
    eta, workers = 0.5, 3
    a = factor * Force(workers, None, "round-robin", together=False).largest(eta)
    x, centre = np.arange(1.0, 1.0 + workers), 0.0
    for _ in range(5000):
        for i in range(workers):
            pull = a * (x[i] - centre)
            x[i] -= eta * x[i] + pull
            centre += pull
    assert (abs(centre) < 1e-3) if factor < 1 else (abs(centre) > 1e3)


def test_the_bound_of_sync_is_beta_one():
    force = Force(4, 2.5, "sync", together=True)
    force.check(0.1)
    with pytest.raises(UsageError, match=r"a <= 1 / workers = 0.25 with 4 workers: pass a rho of at most 2.4"):
        force.check(0.101)
    assert force.rate(0.1) == 0.25
    assert Force(4, None, "sync", together=True).rate(17.0) == 0.225


@pytest.mark.ranks(3)
def test_what_is_not_stable_is_refused_on_all_ranks(comm):
    def refused(match, **options):
        with pytest.raises(UsageError, match=match):
            psgd.connect(comm, np.zeros(3), strategy="easgd", **options).__enter__()

    refused(r"a = lr \* rho = 0.1 \* 3.5 = 0.35.*a <= 1 / workers = 0.333.*at most 3.333", lr=0.1, rho=3.5)
    refused(r"a <= \(4 - 2 lr\) / \(4 - lr\) = 0.666667", lr=1.0, rho=0.7, easgd_order="async")
    refused(r"learning rate of 0 to 2.*got 2.5", lr=2.5, easgd_order="round-robin")
    refused(r"a = 0.9 / workers = 0.3 .*lower the learning rate", lr=1.8, easgd_order="hogwild")
    rising = psgd.optim.schedules.warmup(psgd.optim.schedules.cosine(0.5, 1e6), 5e4)
    refused(r"a = lr \* rho", lr=rising, rho=0.68)
    with psgd.connect(comm, np.zeros(3), strategy="easgd", lr=rising, rho=0.66) as ps:
        ps.step(1)
    with psgd.connect(comm, np.zeros(3), strategy="easgd", lr=0.1, rho=10 / 3) as ps:  # the bound itself
        ps.step(1)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("order", ORDERS)
def test_a_rate_that_turns_unstable_in_the_run_is_an_error_and_no_hang(comm, order):
    def spiked(samples):
        return 3.0 if 5800 < samples < 6040 else 0.1  # where nobody looks beforehand

    options = {"strategy": "easgd", "easgd_order": order, "period": 1, "lr": spiked, "rho": 0.5}

    def run():
        with psgd.connect(comm, np.zeros(3), **options) as ps:
            for _ in range(10_000):
                ps.step(30)

    with pytest.raises(Error) as caught:
        run()
    assert any(comm.allgather(isinstance(caught.value, UsageError)))
