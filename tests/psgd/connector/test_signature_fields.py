"""What all ranks must pass alike, and what a resumed run shares."""

import inspect
import json

import numpy as np
import pytest

import psgd
from psgd.connector.options import ConnectOptions, check
from psgd.connector.signature import common, signature


def signed(size=10, dtype="float32", **given):
    parameters = list(inspect.signature(psgd.connect).parameters.values())
    usual = {each.name: each.default for each in parameters if each.default is not each.empty}
    own = {name: given.pop(name) for name in list(given) if name not in usual}
    asked, vector = ConnectOptions(**(usual | given), options=own), np.zeros(size, dtype)
    return signature(asked, check(asked, vector, 3), vector)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"size": 11}, "size"),
        ({"dtype": "float64"}, "dtype"),
        ({"lr": 0.2}, "lr"),
        ({"lr": lambda samples: 0.1 if samples < 100 else 0.05}, "lr"),
        ({"rule": "adam"}, "rule"),
        ({"momentum": 0.5}, "momentum"),
        ({"accumulate": 2}, "strategy's options"),
        ({"placement": "spread"}, "placement"),
        ({"checkpoint_dir": "a"}, "checkpoint_dir"),
        ({"replay": "a"}, "replay"),
    ],
)
def test_what_differs_is_seen_under_its_name(given, name):
    usual, other = signed(), signed(**given)
    assert json.loads(json.dumps(other)) == other
    assert {key for key in usual if usual[key] != other[key]} == {name}


def test_a_resumed_run_may_have_another_rate_but_not_another_rule():
    assert common(signed()) == common(signed(lr=0.2))
    assert common(signed()) != common(signed(rule="adam"))
    assert common(signed(), "lr") != common(signed(lr=0.2), "lr")
