"""What `psgd.connect` refuses of one rank's arguments, and what it makes of them."""

from pathlib import Path

import numpy as np
import pytest

import psgd
from psgd.connector.options import ConnectOptions, check, segment_bytes_for
from psgd.kernels.errors import UsageError
from psgd.metrics.run_metrics import RunMetrics
from psgd.optim import schedules
from psgd.server.wire import INLINE_BYTES

MIB = 1 << 20


def given(**changes):
    """The defaults of `psgd.connect`, but for these."""
    defaults = {
        "strategy": "sync",
        "servers": None,
        "placement": "auto",
        "lr": 0.1,
        "rule": "sgd",
        "momentum": 0.9,
        "weight_decay": 0.0,
        "clip_norm": 0.0,
        "reduction": "mean",
        "staleness_lr": "none",
        "on_nan": "warn",
        "compress": None,
        "density": None,
        "compress_warmup": 0.0,
        "compress_sync": 0,
        "record": None,
        "replay": None,
        "metrics": None,
        "segment_bytes": None,
        "checkpoint_dir": None,
        "checkpoint_every": 0,
        "checkpoint_minutes": 0.0,
        "checkpoint_keep": 3,
        "resume": False,
        "run": None,
        "layout": None,
        "checkpoint_request": None,
        "options": {},
    }
    return ConnectOptions(**{**defaults, **changes})


def test_what_is_not_said_follows_from_the_strategy_and_the_ranks():
    params = np.zeros(100)
    found = check(given(), params, 4)
    assert (found.servers, found.workers) == (1, 3)
    assert (check(given(), params, 1).servers, check(given(strategy="allreduce"), params, 4).servers) == (0, 0)
    assert check(given(strategy="decentralized"), params, 4).run.compression.name == "threshold"
    assert check(given(), params, 4).run.compression is None


def test_options_become_what_a_run_does():
    rate = schedules.cosine(0.5, 100)
    found = check(given(lr=rate, rule="momentum", reduction="sum", clip_norm=2, servers=2), np.zeros(100), 5)
    optimizer = found.run.optimizer
    assert (optimizer.schedule, optimizer.rule.name) == (rate, "momentum")
    assert (optimizer.clip_norm, optimizer.reduction_factor) == (2.0, 3.0)
    plan = check(given(checkpoint_dir="there", checkpoint_every=7), np.zeros(100), 2).plan
    assert (plan.directory, plan.every, plan.keep) == (Path("there"), 7, 3)


@pytest.mark.parametrize(
    ("shard", "asked", "segment"),
    [(MIB, None, MIB // 2), (64 * MIB, None, MIB), (MIB, 65536, 65536), (MIB, 1, INLINE_BYTES)],
)
def test_length_of_a_segment(shard, asked, segment):
    assert segment_bytes_for(shard, asked) == segment


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoint_dir": 3}, "checkpoint_dir: expected a folder's path, got 3"),
        ({"checkpoint_every": 5}, "checkpoint_every: expected checkpoint_dir with it"),
        ({"checkpoint_every": 5, "resume": True}, "checkpoint_every, resume: expected checkpoint_dir with them"),
        ({"checkpoint_dir": ".", "checkpoint_keep": 0}, "checkpoint_keep: expected a whole number, at least 1, got 0"),
    ],
)
def test_checkpoints_that_cannot_be(options, message):
    with pytest.raises(UsageError, match=message):
        check(given(**options), np.zeros(4), 2)


@pytest.mark.ranks(3)
@pytest.mark.parametrize("what", ["list", "int64", "2-D", "strided", "read-only", "big-endian"])
def test_wrong_arrays_on_one_rank_are_named_on_all(comm, what):
    wrong = {
        "list": [0.0] * 4,
        "int64": np.zeros(4, np.int64),
        "2-D": np.zeros((2, 2), np.float32),
        "strided": np.zeros(8, np.float32)[::2],
        "read-only": np.zeros(4, np.float32),
        "big-endian": np.zeros(4, ">f4"),
    }[what]
    if what == "read-only":
        wrong.flags.writeable = False
    with pytest.raises(UsageError, match=r"psgd.connect on rank 1: params: expected"):
        psgd.connect(comm, wrong if comm.rank == 1 else np.zeros(4, np.float32))


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"servers": 2}, "servers: expected 1 to 1 of 2 ranks"),
        ({"servers": 0}, "servers: expected 1 to 1 of 2 ranks"),
        ({"strategy": "psync"}, "strategy: expected one of"),
        ({"rule": "lamb"}, "rule: expected one of"),
        ({"reduction": "max"}, "reduction: expected one of mean, sum, got 'max'"),
        ({"staleness": 3}, "strategy sync: expected"),
        ({"lr": -1.0}, "lr: expected a finite number above 0, got -1.0"),
        ({"lr": True}, "lr: expected a finite number above 0"),
        ({"lr": float("nan")}, "lr: expected a finite number above 0"),
        ({"clip_norm": -1.0}, "clip_norm: expected a finite number, at least 0"),
        ({"clip_norm": float("nan")}, "clip_norm: expected a finite number, at least 0"),
        ({"weight_decay": "x"}, "weight_decay: expected a finite number, at least 0"),
        ({"rule": "momentum", "momentum": float("nan")}, r"momentum: expected a number in \[0, 1\)"),
        ({"servers": 1.5}, "servers: expected a whole number, got 1.5"),
        ({"strategy": ["sync"]}, "strategy: expected one of sync, async, softsync"),
        ({"segment_bytes": -5}, "segment_bytes: expected"),
        ({"segment_bytes": 1.5}, "segment_bytes: expected"),
    ],
)
def test_wrong_options(comm, options, message):
    with pytest.raises(UsageError, match=message):
        psgd.connect(comm, np.zeros(4, np.float32), **options)


@pytest.mark.ranks(3)
def test_metrics_for_other_workers_are_refused_on_all_ranks(comm):
    with pytest.raises(UsageError, match="on rank 0: metrics: expected RunMetrics for 2 workers, got 7"):
        psgd.connect(comm, np.zeros(4, np.float32), metrics=RunMetrics(7) if comm.rank == 0 else None)
