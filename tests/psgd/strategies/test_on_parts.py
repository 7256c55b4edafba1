from pathlib import Path

import pytest

from psgd.kernels.errors import UsageError
from psgd.strategies.catalog import STRATEGIES
from psgd.strategies.on_parts import check, check_without_flushes

CUT = {"pipe": 2, "data": 2}
TENSOR = {"tensor": 2, "data": 2}


def allowed(name, sizes):
    try:
        check(name, {}, {}, sizes)
    except UsageError:
        return False
    return True


def test_strategies():
    assert {name for name in STRATEGIES if allowed(name, CUT)} == {
        *("sync", "async", "ssp", "allreduce", "averaging", "easgd"),
    }
    assert {name for name in STRATEGIES if allowed(name, TENSOR)} == {"sync", "allreduce", "averaging", "easgd"}


@pytest.mark.parametrize(
    ("name", "values", "own", "message"),
    [
        ("softsync", {}, {}, "mesh: expected another strategy than softsync: parts would group different pushes"),
        ("easgd", {}, {"easgd_order": "async"}, "mesh: expected easgd_order=sync: other orders differ by part"),
        ("allreduce", {"compress": "topk"}, {}, "compress: not with mesh: what is sent is chosen in each part"),
        (
            "sync",
            {"keep_best": True},
            {},
            "keep_best: not with mesh and servers: .*; omit it, or use strategy=allreduce",
        ),
        ("sync", {"record": "f"}, {}, "record: not with mesh: each part has an order of its own; omit it"),
        ("sync", {"placement": "spread"}, {}, "placement: not with mesh: its servers are the first ranks along data"),
        ("sync", {"placement": [1, 0]}, {}, "placement: not with mesh"),
        ("sync", {"server_device": "cuda"}, {}, "server_device: not with mesh: parts are updated on cores; omit it"),
    ],
)
def test_what_does_not_go_together(name, values, own, message):
    with pytest.raises(UsageError, match=message):
        check(name, values, own, CUT)


def test_values_that_are_as_if_not_given():
    check("sync", {"compress": "none", "on_nan": "warn", "device": "cpu", "save": Path("a.pt")}, {}, CUT)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("ssp", {}, "pipe_schedule: expected another strategy than ssp: a gradient would be late by the stages and by"),
        ("sync", {"clip_norm": 1.0}, "pipe_schedule: expected clip_norm=0: stages take their steps at different times"),
    ],
)
def test_what_does_not_go_with_steps_at_different_times(name, values, message):
    with pytest.raises(UsageError, match=message):
        check_without_flushes("pipedream", name, values)
    check_without_flushes("pipedream", "sync", {"clip_norm": 0.0})
