"""The settings of `psgd bench train`: each is one that `psgd train` takes, and the one that the documentation names."""

import pytest
from harness import ROOT

from psgd.launch import options
from psgd.launch.bench.train.settings import AGAINST, ON, PEERS, STRATEGIES, injected, rate, setting, words
from psgd.strategies.catalog import STRATEGIES as STRATEGY_NAMES

DOCS = ROOT / "docs" / "benchmarks.md"


def test_strategies_and_peers_are_known():
    assert {*STRATEGIES} - {"single"} == {*STRATEGY_NAMES}
    assert set(AGAINST.values()) == set(ON["cpu"])
    assert {*ON["cpu"], *ON["cuda"]} == set(PEERS)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "single"])
def test_train_takes_every_setting(name, workers):
    given = {key.replace("-", "_"): value for key, value in setting(name, workers).items()}
    texts = {key: value if value is True else str(value) for key, value in given.items()}
    config = options.build({**texts, "strategy": name, "workers": str(workers)})
    assert {key: config.flat()[key] for key in given} == given
    assert 1 <= config.own.get("softsync", 1) <= workers


def test_softsync_groups_grow_with_the_workers():
    assert [setting("softsync", workers)["softsync"] for workers in (1, 2, 3, 4, 5, 8)] == [1, 2, 2, 2, 2, 4]


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_documentation_names_the_setting(name):
    text = " ".join(words(setting(name, 2)))
    shown = f"`{text.replace('=', ' ')}`" if text else ""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in DOCS.read_text().splitlines()]
    assert [f"`{name}`", shown, f"`{AGAINST[name]}`"] in [row[:3] for row in cells]


def test_ddp_has_the_rate_of_sync():
    assert [rate(name, 0.1, 4) for name in ("sync", "torch", "ddp", "torch-hogwild")] == [0.1, 0.1, 0.4, 0.1]


def test_one_process_has_no_straggler_beside_it():
    text = "compute:0.01, slow:3:4,slow:rotating:2:0.5"
    assert injected("sync", text) == injected("torch-hogwild", text) == text
    assert injected("single", text) == injected("torch", text) == "compute:0.01"
