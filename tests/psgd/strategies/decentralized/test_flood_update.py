"""What a worker's step changes, against the formulas in NumPy."""

from types import SimpleNamespace

import numpy as np
import pytest

from psgd.compression import options
from psgd.kernels.errors import UsageError
from psgd.optim import rules
from psgd.optim.optimizer import OptimizerOptions
from psgd.strategies.decentralized.flood_update import Updates

N = 4097


def peers(rule, compress=None, clip=0.0, factor=1.0, warmup=0.0, sync=0, lr=lambda samples: 0.5 / (1 + samples)):
    return SimpleNamespace(
        params=np.cos(np.arange(N)),
        optimizer=OptimizerOptions(rule, lr, clip, factor),
        compression=options.create(compress, 0.05, warmup, sync, rule),
    )


def gradient(k):
    return np.sin(np.arange(N) * (k + 1.0)) * (1 + k)


@pytest.mark.parametrize("compress", ["none", "threshold"])
@pytest.mark.parametrize(("momentum", "decay", "clip", "factor"), [(0, 0, 0, 1), (0.9, 0.1, 0, 1), (0.5, 0.2, 3, 4)])
def test_an_update_is_the_step_of_the_rule(compress, momentum, decay, clip, factor):
    rule = rules.momentum(momentum, decay) if momentum else rules.sgd(decay)
    given = peers(rule, compress, clip, factor)
    updates, params, velocity = Updates(given), given.params.copy(), np.zeros(N)
    payload, put = np.empty(updates.room, np.uint8), np.zeros(N)
    assert updates.whole == (compress == "none")
    for k in range(6):
        grad, start = gradient(k), given.params.copy()
        nbytes = updates.make(grad, payload, updates.whole)
        np.testing.assert_array_equal(grad, gradient(k))
        np.testing.assert_array_equal(given.params, start)
        assert updates.lr == 0.5 / (1 + updates.samples) and updates.samples == 3 * k
        norm = np.sqrt((grad**2).sum())
        g = grad * (clip / norm if clip and norm > clip else 1) + decay * start
        velocity = momentum * velocity + g
        put -= updates.lr * factor * velocity
        updates.add(payload[:nbytes], updates.whole, 3)
        left = 0.0 if updates.codec is None else updates.codec.residual
        np.testing.assert_allclose(given.params, params + put - left, rtol=0, atol=1e-12)
    assert compress == "none" or 0 < np.abs(updates.codec.residual).max() < 10


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e35])
@pytest.mark.parametrize("compress", ["none", "threshold", "topk", "onebit"])
def test_nothing_remains_of_a_gradient_that_is_not_finite(compress, bad):
    rule = rules.momentum(0.9)
    one, two = Updates(peers(rule, compress)), Updates(peers(rule, compress))
    payload, other = np.empty(one.room, np.uint8), np.empty(two.room, np.uint8)
    for k in range(4):
        wrong = gradient(7)
        wrong[N // 2] = bad
        assert one.make(wrong, payload, one.whole) == 0
        a, b = one.make(gradient(k), payload, one.whole), two.make(gradient(k), other, two.whole)
        assert a > 0
        np.testing.assert_array_equal(payload[:a], other[:b])


@pytest.mark.parametrize(("warmup", "sync", "expected"), [(7, 0, "WWWeeeee"), (0, 3, "eeWeeWee"), (4, 4, "WWeWeeeW")])
def test_updates_sent_whole_take_what_was_left_with_them(warmup, sync, expected):
    given = peers(rules.sgd(), "threshold", warmup=warmup, sync=sync, lr=lambda samples: 0.25)
    updates, put, did = Updates(given), given.params.copy(), ""
    payload = np.empty(updates.room, np.uint8)
    for k in range(8):
        whole = updates.whole
        did += "W" if whole else "e"
        nbytes = updates.make(gradient(k), payload, whole)
        assert (nbytes == 8 * N) == whole
        updates.add(payload[:nbytes], whole, 3)
        put -= 0.25 * gradient(k)
        assert not whole or not updates.codec.residual.any()
        np.testing.assert_allclose(given.params + updates.codec.residual, put, rtol=0, atol=1e-12)
    assert did == expected


@pytest.mark.parametrize("rule", [rules.adam(), rules.nesterov()])
def test_other_rules_are_refused(rule):
    with pytest.raises(UsageError, match=f"expected sgd or momentum, got {rule.name}"):
        Updates(peers(rule))
