"""Arguments that differ between ranks are one error on all of them."""

import numpy as np
import pytest

import psgd
from psgd.connector.signature import common
from psgd.kernels.errors import ContractError


@pytest.mark.ranks(3)
def test_different_sizes_are_one_error_on_all_ranks(comm):
    params = np.zeros(10 + (comm.rank == 1), np.float32)
    with pytest.raises(ContractError) as caught:
        psgd.connect(comm, params)
    message = str(caught.value)
    assert message == "psgd.connect: all ranks must pass the same size, got 10 on rank(s) 0, 2; 11 on rank(s) 1"
    assert len(set(comm.allgather(message))) == 1


@pytest.mark.ranks(3)
@pytest.mark.parametrize(
    ("key", "mine", "theirs"),
    [
        ("strategy", "sync", "async"),
        ("clip_norm", 1.0, 2.0),
        ("servers", 1, 2),
        ("rule", "sgd", "adam"),
        ("momentum", 0.9, 0.5),
        ("weight_decay", 0.0, 0.1),
    ],
)
def test_different_options_are_one_error_on_all_ranks(comm, key, mine, theirs):
    options = {key: mine if comm.rank < 2 else theirs}
    with pytest.raises(ContractError, match=f'the same {key}, got "?{mine}"? on rank'):
        psgd.connect(comm, np.zeros(4, np.float32), **options)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("scheduled", [False, True])
def test_different_rates_are_one_error_on_all_ranks(comm, scheduled):
    lr = 0.1 * (1 + comm.rank // 2)
    with pytest.raises(ContractError, match=r"the same lr, got .* on rank\(s\) 0, 1; .* on rank\(s\) 2"):
        psgd.connect(comm, np.zeros(4, np.float32), lr=psgd.optim.schedules.cosine(lr, 1e4) if scheduled else lr)


def test_a_run_that_goes_on_may_have_another_rate():
    signed = dict.fromkeys(
        ["size", "dtype", "strategy", "strategy's options", "workers", "rule", "compress", "lr", "servers"], 1
    )
    assert "lr" not in common(signed) and "servers" not in common(signed)
    assert common(signed, "servers")["servers"] == 1
