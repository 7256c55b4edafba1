"""Which runs can keep each shard twice, and what is said of the others."""

from pathlib import Path

import pytest

from psgd.config import TrainConfig
from psgd.kernels.errors import UsageError
from psgd.strategies.held_twice import check


@pytest.mark.parametrize("strategy", ["sync", "async", "ssp", "softsync"])
def test_several_servers_can(strategy):
    check(TrainConfig(strategy=strategy, replicas=1, clip_norm=1.0, checkpoint_dir=Path("c")).flat(), 2, 2)
    check(TrainConfig(strategy=strategy).flat(), 1, 1)


@pytest.mark.parametrize(
    ("options", "servers", "said"),
    [
        ({}, 1, "got 1: add --servers 2"),
        ({"strategy": "async", "spares": 1, "checkpoint_dir": Path("c")}, 2, "expected --strategy sync.*got async"),
        ({"compress": "onebit"}, 2, "without dead workers"),
        ({"strategy": "hogwild"}, 2, "without dead workers"),
    ],
)
def test_others_are_refused(options, servers, said):
    with pytest.raises(UsageError, match=said):
        check(TrainConfig(replicas=1, **options).flat(), servers, 2)
