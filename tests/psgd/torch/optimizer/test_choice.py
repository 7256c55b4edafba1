"""Which optimizers a strategy takes, and in what words others are refused."""

import pytest

torch = pytest.importorskip("torch")
from psgd.kernels.errors import UsageError  # noqa: E402
from psgd.torch.optimizer import choice  # noqa: E402

optim = torch.optim


def parameters():
    return [torch.nn.Parameter(torch.ones(2, 2))]


@pytest.mark.parametrize(
    ("kind", "strategy", "options", "message"),
    [
        (optim.LBFGS, "allreduce", {}, "got LBFGS, which evaluates the loss several times"),
        (optim.SparseAdam, "averaging", {}, "got SparseAdam, which needs sparse gradients"),
        (optim.Adafactor, "ssp", {}, "expected an elementwise optimizer such as AdamW, got Adafactor: use allreduce"),
        (optim.NAdam, "sync", {}, "strategy sync has its servers take the step"),
        (optim.Adafactor, "allreduce", {"checkpoint_dir": "x"}, "checkpoint_dir: expected an elementwise optimizer"),
        (optim.Adafactor, "allreduce", {"shard": 1}, "shard: expected an elementwise optimizer such as AdamW with it"),
        (optim.AdamW, "ssp", {"lr": 0.1}, "lr: the AdamW optimizer has its own; omit it"),
        (optim.AdamW, "ssp", {"momentum": 0.1}, "momentum: the AdamW optimizer has its own"),
        (optim.AdamW, "never", {}, "strategy: expected one of .*, got 'never'"),
    ],
)
def test_what_is_refused(kind, strategy, options, message):
    with pytest.raises(UsageError, match=message) as error:
        choice.refuse(kind(parameters()), strategy, options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("strategy", ["allreduce", "averaging", "easgd", "hogwild"])
def test_any_optimizer_goes_where_workers_have_all_parameters(strategy):
    choice.refuse(optim.Adafactor(parameters()), strategy, {})
    choice.refuse(optim.AdamW(parameters()), strategy, {"checkpoint_dir": "x", "clip_norm": 1.0})


def test_where_momentum_comes_before_encoding():
    assert choice.encodes("decentralized", {}) and choice.encodes("ssp", {"compress": "topk"})
    assert not choice.encodes("decentralized", {"peers": "pairs"}) and not choice.encodes("ssp", {"compress": "none"})


def test_plain_sgd_has_psgds_rule():
    assert choice.plain(optim.SGD(parameters(), lr=0.1)).name == "sgd"
    rule = choice.plain(optim.SGD(parameters(), lr=0.1, momentum=0.8, weight_decay=0.01))
    assert (rule.name, rule.factor, rule.weight_decay) == ("momentum", 0.8, 0.01)


@pytest.mark.parametrize(
    ("optimizer", "got"),
    [
        (lambda: optim.AdamW(parameters()), "got AdamW"),
        (lambda: optim.SGD(parameters(), lr=0.1, momentum=0.9, nesterov=True), "got SGD with nesterov=True"),
        (lambda: optim.SGD(parameters(), lr=0.1, momentum=0.9, dampening=0.1), "got SGD with dampening=0.1"),
        (lambda: optim.SGD(parameters(), lr=0.1, maximize=True), "got SGD with maximize=True"),
        (
            lambda: optim.SGD([{"params": parameters()}, {"params": parameters(), "lr": 0.2}], lr=0.1),
            "got SGD with groups of different lr",
        ),
    ],
)
def test_others_cannot_come_before_encoding(optimizer, got):
    with pytest.raises(UsageError, match=got):
        choice.plain(optimizer())
