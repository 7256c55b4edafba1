"""The checks of one rank's arguments; they need no other rank."""

import inspect

import numpy as np
import pytest

import psgd
from psgd.connector.options import ConnectOptions, check, checked_vector, segment_bytes_for
from psgd.kernels.errors import UsageError
from psgd.optim.rules import Rule
from psgd.server.wire import INLINE_BYTES


def options(**given):
    parameters = list(inspect.signature(psgd.connect).parameters.values())
    usual = {each.name: each.default for each in parameters if each.default is not each.empty}
    own = {name: given.pop(name) for name in list(given) if name not in usual}
    return ConnectOptions(**(usual | given), options=own)


VECTOR = np.zeros(1000, np.float32)


@pytest.mark.parametrize(
    ("given", "size", "servers"),
    [({}, 1, 0), ({}, 3, 1), ({"servers": 2}, 3, 2), ({"strategy": "allreduce"}, 3, 0), ({"servers": 0}, 1, 0)],
)
def test_servers(given, size, servers):
    checked = check(options(**given), VECTOR, size)
    assert (checked.servers, checked.workers) == (servers, size - servers)


@pytest.mark.parametrize(
    ("given", "codec"),
    [
        ({}, None),
        ({"compress": "topk"}, "topk"),
        ({"strategy": "decentralized"}, "threshold"),
        ({"strategy": "decentralized", "compress": "none"}, None),
        ({"strategy": "decentralized", "peers": "pairs"}, None),
    ],
)
def test_compression(given, codec):
    found = check(options(**given), VECTOR, 2).run.compression
    assert (found and found.name) == codec


@pytest.mark.parametrize("strategy", ["sync", "ssp", "softsync"])
def test_a_server_on_a_single_rank(strategy):
    with pytest.raises(UsageError, match="servers: expected 0 on a single rank, got 1: start at least 2 ranks"):
        check(options(strategy=strategy, servers=1), VECTOR, 1)


def test_accumulate_is_everyones():
    for strategy in ("sync", "averaging"):
        assert check(options(strategy=strategy, accumulate=3), VECTOR, 2).run.accumulate == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"strategy": "hogwild", "servers": 1}, "servers: strategy hogwild has none; omit it"),
        ({"strategy": "allreduce", "replay": "x"}, "staleness_lr, record, replay: strategy allreduce has no servers"),
        ({"strategy": "ssp", "servers": 3}, "servers: expected 1 to 2 of 3 ranks to be servers, got 3: start"),
        ({"strategy": "softsync", "servers": 5}, "servers: expected 1 to 2 of 3 ranks to be servers, got 5: start"),
        ({"density": 0.1}, "density: expected compress=threshold, onebit or topk with it"),
        ({"checkpoint_request": 3}, "checkpoint_request: expected a CheckpointRequest, got int"),
        ({"metrics": 3}, "metrics: expected RunMetrics, got int"),
        ({"accumulate": 0}, "accumulate: expected a whole number, at least 1, got 0"),
        ({"checkpoint_every": 3, "resume": True}, "checkpoint_every, resume: expected checkpoint_dir with them"),
        ({"checkpoint_dir": 3}, "checkpoint_dir: expected a folder's path, got 3"),
        ({"strategy": "ssp", "stalenes": 3}, "did you mean staleness"),
        ({"staleness": 3}, r"strategy sync: .* got staleness; staleness is an option of ssp$"),
        ({"period": 3}, "; period is an option of averaging and easgd and hogwild$"),
        ({"layout": 3}, "layout: expected a psgd.Layout, got int"),
        ({"run": 3}, "run: expected a dictionary of names and JSON values, got 3"),
        ({"run": {3: 1}}, "run: expected names and JSON values, got 3: 1"),
        ({"run": {"a": np.zeros(2)}}, "run: expected names and JSON values, got 'a': array"),
        ({"rule": Rule("a", None, None)}, "rule a: expected a function as init, got None"),
        ({"rule": Rule("a", tuple, None)}, "rule a: expected a function as update, got None"),
        ({"rule": Rule("a", tuple, print, sparse=3)}, "rule a: expected a function as sparse, got 3"),
        ({"rule": Rule("a", tuple, print, factor=2.0)}, r"rule a: factor: expected a number in \[0, 1\), got 2.0"),
        ({"rule": Rule("a", tuple, print, weight_decay=-1)}, "rule a: weight_decay: expected a finite number"),
        ({"rule": Rule(3, tuple, print)}, "rule: expected a Rule whose name is a text, got 3"),
        ({"lr": lambda samples: -1.0}, "lr: the schedule at 0 samples: expected a finite number, at least 0, got -1"),
        ({"lr": lambda samples: "x"}, "lr: the schedule at 0 samples: expected a finite number, at least 0, got 'x'"),
        ({"on_nan": "ignore"}, "on_nan: expected one of warn, skip, stop, got 'ignore'"),
    ],
)
def test_refusals(given, message):
    with pytest.raises(UsageError, match=message):
        check(options(**given), VECTOR, 3)


@pytest.mark.parametrize(
    ("vector", "complaint"),
    [
        (np.zeros(3), None),
        ([1.0], "params: "),
        (np.zeros(3, int), "expected float32 or float64, got int64"),
        (np.zeros((2, 2)), "pass params.reshape"),
        (np.zeros(8)[::2], "expected a contiguous 1-D array"),
        (np.broadcast_to(1.0, 1), "expected a writable array"),
    ],
)
def test_vectors(vector, complaint):
    found, said = checked_vector(vector)
    assert (said is None and found is vector) if complaint is None else complaint in said


def test_segments():
    assert segment_bytes_for(1 << 20, None) == 512 << 10
    assert segment_bytes_for(8 << 20, None) == 1 << 20
    assert segment_bytes_for(1, 1) == INLINE_BYTES
    with pytest.raises(UsageError, match="segment_bytes: expected 1 or more, got 0"):
        segment_bytes_for(1, 0)
