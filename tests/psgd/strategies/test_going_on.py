"""Which runs go on without a dead worker."""

from pathlib import Path

import pytest

from psgd.config import TrainConfig
from psgd.strategies.going_on import survives


@pytest.mark.parametrize("strategy", ["sync", "async", "ssp", "softsync"])
def test_the_servers_strategies_do(strategy):
    assert survives(TrainConfig(strategy=strategy).flat(), 1, 2)
    assert survives(TrainConfig(strategy=strategy).flat(), 2, 2)
    assert not survives(TrainConfig(strategy=strategy).flat(), 1, 1)


@pytest.mark.parametrize("strategy", ["allreduce", "averaging", "easgd", "hogwild", "decentralized"])
def test_and_those_without(strategy):
    assert survives(TrainConfig(strategy=strategy).flat(), 0, 2)
    assert not survives(TrainConfig(strategy=strategy).flat(), 0, 1)
    with_spares = TrainConfig(strategy=strategy, spares=1, checkpoint_dir=Path("c"))
    assert survives(with_spares.flat(), 0, 2) == (strategy == "allreduce")  # else they join at once


@pytest.mark.parametrize(
    "option",
    [
        {"strategy": "easgd", "own": {"easgd_order": "round-robin"}, "checkpoint_dir": Path("c")},
        {"replicas": 1, "checkpoint_dir": Path("c")},
        {"record": Path("r")},
        {"replay": Path("r")},
        {"trace": Path("t")},
        {"compress": "onebit"},
        {"device": "cuda"},
        {"own": {"accumulate": 2}},
        {"mesh": "tensor=2"},
        {"model": "net.py:make"},
        {"survive": False},
    ],
)
def test_what_keeps_things_by_worker_does_not(option):
    assert not survives(TrainConfig(**option).flat(), 1, 2)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_nor_does_what_is_in_parts_on_the_workers(stage):
    assert not survives(TrainConfig(strategy="allreduce", shard=stage).flat(), 0, 2)
