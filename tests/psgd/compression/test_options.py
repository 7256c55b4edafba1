"""Options of compressed updates, and the optimizer in front of the codec against PyTorch's formula."""

import numpy as np
import pytest

from psgd.compression import options
from psgd.compression.before_encoding import BeforeEncoding
from psgd.kernels.errors import UsageError
from psgd.optim import rules, schedules
from psgd.optim.optimizer import OptimizerOptions


def test_none_is_nothing():
    assert options.create(None, 1e-3, 0, 0, rules.adam()) is None
    assert options.create("none", 1e-3, 0, 0, rules.nesterov()) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("zip", 1e-3, 0, 0), "compress: expected one of none, threshold, onebit, topk, got 'zip'"),
        (("threshold", 0, 0, 0), "density: expected a number above 0, at most 1, got 0"),
        (("threshold", 1.5, 0, 0), "density: expected a number above 0, at most 1, got 1.5"),
        (("threshold", 1e-3, -1, 0), "compress_warmup: expected a finite number, at least 0, got -1"),
        (("threshold", 1e-3, 0, 2.5), "compress_sync: expected a whole number, at least 0, got 2.5"),
    ],
)
def test_wrong_options(arguments, message):
    with pytest.raises(UsageError, match=message):
        options.create(*arguments, rules.sgd())


@pytest.mark.parametrize("rule", [rules.nesterov(), rules.adam(), rules.Rule("mine", lambda p: (), print)])
def test_rules_that_cannot_come_before_encoding(rule):
    with pytest.raises(UsageError, match=f"expected sgd or momentum, which can come before encoding, got {rule.name}"):
        options.create("topk", 1e-3, 0, 0, rule)


def optimizer(**options):
    return OptimizerOptions(rules.sgd(), schedules.constant(0.5), **options)


def test_a_server_sends_what_all_workers_changed():
    made = options.create("threshold", 1e-2, 0, 0, rules.sgd())
    assert made.codec(1000, "float32").density == 1e-2
    assert made.codec(1000, "float32", workers=4).density == 4e-2
    assert made.codec(1000, "float32", workers=400).density == 1.0


def test_topk_has_the_momentum_itself_but_not_on_a_server():
    made = options.create("topk", 1e-2, 0, 0, rules.momentum(0.75))
    update, payload = np.linspace(1, 2, 100, dtype=np.float32), np.empty(10_000, np.uint8)
    worker, server = made.codec(100, "float32"), made.codec(100, "float32", workers=3)
    for codec in (worker, server):
        codec.encode(update, payload)
        codec.encode(update, payload)
    assert worker.residual[0] == 1 + 1.75
    assert server.residual[0] == 2
    assert BeforeEncoding(made, update, optimizer(), 3).velocity.size == 0


@pytest.mark.parametrize(
    ("warmup", "every", "whole"), [(0, 0, []), (30, 0, [1, 2, 3]), (0, 2, [2, 4]), (15, 3, [1, 2, 3])]
)
def test_which_steps_are_sent_whole(warmup, every, whole):
    made = options.create("threshold", 1e-2, warmup, every, rules.sgd())
    assert [step for step in range(1, 6) if made.sends_whole(10 * (step - 1), step)] == whole
