"""Which runs go on without a dead worker."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from harness import ROOT

from psgd.config import TrainConfig
from psgd.strategies import catalog, going_on
from psgd.strategies.going_on import survives


@pytest.mark.parametrize("strategy", ["sync", "async", "ssp", "softsync"])
def test_the_servers_strategies_do(strategy):
    assert survives(TrainConfig(strategy=strategy).flat(), 1, 2)
    assert survives(TrainConfig(strategy=strategy).flat(), 2, 2)
    assert not survives(TrainConfig(strategy=strategy).flat(), 1, 1)
    assert survives(TrainConfig(strategy=strategy, compress="topk", own={"accumulate": 2}).flat(), 2, 2)


@pytest.mark.parametrize("strategy", ["allreduce", "averaging", "easgd", "hogwild", "decentralized"])
def test_and_those_without(strategy):
    assert survives(TrainConfig(strategy=strategy).flat(), 0, 2)
    assert not survives(TrainConfig(strategy=strategy).flat(), 0, 1)
    with_spares = TrainConfig(strategy=strategy, spares=1, checkpoint_dir=Path("c"))
    assert survives(with_spares.flat(), 0, 2) == (strategy == "allreduce")  # else they join at once
    assert survives(TrainConfig(strategy=strategy, compress="topk").flat(), 0, 2)
    several = {"accumulate": 2}
    assert survives(TrainConfig(strategy=strategy, own=several).flat(), 0, 2)
    assert not survives(replace(with_spares, own=several).flat(), 0, 2)  # a step may end in another epoch


@pytest.mark.parametrize(
    ("option", "why"),
    [
        (
            {"strategy": "easgd", "own": {"easgd_order": "round-robin"}, "checkpoint_dir": Path("c")},
            "--checkpoint-dir with --easgd-order round-robin",
        ),
        ({"record": Path("r")}, "--record (of all workers)"),
        ({"replay": Path("r")}, "--replay (of all workers)"),
        ({"compress": "onebit", "replicas": 1}, "--replicas with --compress"),
        ({"device": "cuda"}, "--device cuda"),
        ({"server_device": "cuda"}, "--server-device cuda"),
        ({"mesh": "tensor=2"}, "--mesh (a model in pieces)"),
        ({"survive": False}, "--no-survive"),
        ({"strategy": "allreduce", "shard": 1}, "--shard"),
        (
            {"strategy": "async", "spares": 1, "checkpoint_dir": Path("c")},
            "--spares or --grow (with async, the run begins again at a checkpoint)",
        ),
    ],
)
def test_what_keeps_things_by_worker_does_not_and_the_user_is_told_why(option, why):
    values = TrainConfig(**option).flat()
    servers = int(catalog.find(values["strategy"]).servers)
    assert going_on.obstacle(values, servers, 2) == why and not survives(values, servers, 2)
    assert going_on.without("--x", values, servers, 2).startswith("--x: expected a run that goes on")
    assert going_on.without("--x", values, servers, 2).endswith(f", got {why}")


def test_the_documentation_names_each_reason():
    text = (ROOT / "docs/failures.md").read_text()
    listed = text[text.index("## Dead workers") : text.index("## Dead servers")]
    asked = {option for _, why in going_on.ENDS for option in re.findall("--[a-z-]+", why)}
    assert {option for option in asked if f"`{option}" not in listed} == {"--strategy", "--servers"}  # of none today
