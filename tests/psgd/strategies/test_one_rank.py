"""One rank alone: each option of each strategy does what its definition says of one worker, or is refused.

The list of options is the catalogs': one that is added there and has no row here is a failure.
"""

import inspect
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from harness.simulation import Elastic, curved, easgd

import psgd
from psgd.kernels.errors import UsageError
from psgd.strategies.catalog import STRATEGIES

N, STEPS, LR = 13, 23, 0.125


def samples_of(worker, clock):
    return (3, 0, 5, 2)[clock % 4]


@dataclass
class Run:
    """What one worker does by the strategies' definitions, one step after the other."""

    accumulate: int = 1
    options: dict[str, Any] = field(default_factory=dict)

    def steps(self, start):
        """The gradient of each step: its function of the parameters, and the samples behind it."""
        for begin in range(0, STEPS, self.accumulate):
            yield range(begin, min(STEPS, begin + self.accumulate))

    def gradient(self, w, clocks):
        total = sum(samples_of(0, c) for c in clocks)
        if len(clocks) == 1 or not total:
            return curved(w, 0, clocks[0]), total
        return sum(samples_of(0, c) * curved(w, 0, c) for c in clocks) / total, total

    def plain(self, start):
        """The optimizer's steps and nothing else."""
        w = start.copy()
        for clocks in self.steps(start):
            g, samples = self.gradient(w, clocks)
            if samples:
                norm, clip = np.linalg.norm(g), self.options.get("clip_norm", 0.0)
                w -= LR * (g * (clip / norm) if clip and norm > clip else g)
        return w

    def outer(self, start):
        """averaging: an outer step along what each period of steps has moved."""
        lr, factor = self.options.get("outer_lr", 1.0), self.options.get("outer_momentum", 0.0)
        period, local_from = self.options.get("period", 8), self.options.get("local_from", 0.0)
        w, old, u, known, since, taken = start.copy(), start.copy(), np.zeros(N), 0, 0, 0
        groups = list(self.steps(start))
        for number, clocks in enumerate(groups, 1):
            g, samples = self.gradient(w, clocks)
            if samples:
                w -= LR * g
                since += samples
            taken += 1
            if taken >= (period if known >= local_from else 1) or number == len(groups):
                if since and known >= local_from:
                    delta = old - w
                    u = factor * u + delta
                    w = old - lr * (delta + factor * u if factor else delta)
                known, since, taken, old = known + since, 0, 0, w.copy()
        return w

    def elastic(self, start):
        """easgd: a worker that is tied to the centre, which is the result."""
        groups = list(self.steps(start))
        rho = self.options.get("rho")
        worker = Elastic(
            0,
            start,
            lambda worker, t: sum(samples_of(0, c) for c in groups[t]),
            lambda w, worker, t: self.gradient(w, groups[t])[0],
            LR,
            0.0,
        )
        a = 0.9 if rho is None else LR * rho
        return easgd("sync", [worker], [len(groups)], self.options.get("period", 8), a)


VALUES = {
    "accumulate": [2, 3, 30],
    "softsync": [1],
    "staleness": [0, 1, 5],
    "period": [1, 4, 8, 100],
    "average_momentum": [True, False],
    "local_from": [0.0, 20.0, 1e9],
    "outer_lr": [0.5, 1.5],
    "outer_momentum": [0.5],
    "easgd_order": ["sync", "round-robin", "async", "hogwild"],
    "rho": [0.5, 2.0],
    "count_lost": [True],
    "peers": ["all", "ring", "random:2", "pairs"],
    "window": [1, 3],
}
"""Values of every option that a strategy has of its own."""
WITH = {"local_from": {"outer_lr": 0.5, "period": 3}, "period": {"outer_momentum": 0.5}}
"""Options of averaging that act with others only, which are added to a row of their own."""
GENERAL: dict[str, list[Any]] = {
    "reduction": ["sum"],
    "clip_norm": [0.5],
    "staleness_lr": ["inverse", "exponential"],
    "compress": ["none", "topk", "onebit", "threshold"],
    "density": [0.5],
    "compress_warmup": [4.0],
    "compress_sync": [2],
    "record": ["file"],
    "replay": ["file"],
}
"""Values of arguments of `psgd.connect` that change what a strategy does."""
OTHERS = {
    *("comm", "params", "strategy", "servers", "placement", "lr", "rule", "momentum", "weight_decay", "metrics"),
    *("segment_bytes", "run", "layout", "on_nan", "options", "callbacks", "trace", "part", "shard", "offload"),
    *("checkpoint_dir", "checkpoint_every", "checkpoint_minutes", "checkpoint_keep", "resume", "checkpoint_request"),
}
"""Arguments that the strategies know nothing of."""


def rows():
    for name, strategy in STRATEGIES.items():
        yield name, {}
        for option in strategy.options:
            for value in VALUES.get(option, []):
                yield name, {option: value}
                if name == "averaging" and option in WITH:
                    yield name, {option: value, **WITH[option]}
        for option, values in GENERAL.items():
            for value in values:
                yield name, {option: value}


def test_every_option_of_the_catalogs_has_a_row():
    assert {option for strategy in STRATEGIES.values() for option in strategy.options} == set(VALUES)
    assert set(inspect.signature(psgd.connect).parameters) - set(GENERAL) == OTHERS


def expected(name, options, start):
    """The parameters at the end, by simulation."""
    run = Run(options.get("accumulate", 1), options)
    if name == "easgd":
        return run.elastic(start)
    if name == "averaging" and {"outer_lr", "outer_momentum"} & set(options):
        return run.outer(start)
    return run.plain(start)


def trained(comm, name, options, start):
    params = start.copy()
    with psgd.connect(comm, params, strategy=name, lr=LR, **options) as ps:
        for clock in range(STEPS):
            ps.grads[:] = curved(ps.params, 0, clock)
            ps.step(samples_of(0, clock))
    return params


def refused(name, options):
    """Whether this is to be refused."""
    strategy = STRATEGIES[name]
    codec = options.get("compress", "none") != "none" or {"density", "compress_warmup", "compress_sync"} & set(options)
    served = {"record", "replay"} & set(options) or ("staleness_lr" in options and not strategy.servers)
    return bool(codec or served)


@pytest.mark.ranks(1)
@pytest.mark.parametrize(("name", "options"), list(rows()))
def test_an_option_works_or_is_refused(comm, name, options, tmp_path):
    start = np.cos(np.arange(N))
    if "record" in options or "replay" in options:
        options = dict.fromkeys(options, str(tmp_path / "order"))
    if refused(name, options):
        with pytest.raises(UsageError):
            trained(comm, name, options, start)
        return
    clips = "clip_norm" in options
    if name == "easgd" and clips:
        return  # the pull has no part in it; test_easgd has the step's bits
    tolerance = {"rtol": 1e-13, "atol": 1e-13}
    np.testing.assert_allclose(trained(comm, name, options, start), expected(name, options, start), **tolerance)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("form", [{"accumulate": 4}, {"outer_lr": 0.5}, {"period": 4}, {"rho": 0.5}])
def test_the_simulation_sees_the_option(name, form):
    """So that a run in which it does nothing cannot agree with it."""
    if not set(form) <= set(STRATEGIES[name].options) or name == "hogwild" or (name, *form) == ("averaging", "period"):
        return
    start = np.cos(np.arange(N))
    assert abs(expected(name, form, start) - expected(name, {}, start)).max() > 1e-3
