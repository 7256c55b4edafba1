"""Which rule stands for a `torch.optim` optimizer under a strategy, and what is refused."""

from collections.abc import Mapping
from typing import Any

import torch

from psgd.connector.options import is_serverless
from psgd.kernels.errors import UsageError
from psgd.optim import rules
from psgd.optim.rules import Rule
from psgd.torch.optimizer.rule import is_elementwise

OURS = ("lr", "rule", "momentum", "weight_decay")
"""Arguments of `psgd.connect` that a `torch.optim` optimizer decides."""


def refuse(optimizer: torch.optim.Optimizer, strategy: str, options: Mapping[str, Any]) -> None:
    """Refuses what cannot be.

    Raises:
        UsageError: an optimizer or an option that does not go with the strategy.
    """
    kind = type(optimizer).__name__
    serverless = is_serverless(strategy)
    for name in OURS:
        if name in options:
            raise UsageError(f"DistributedOptimizer: {name}: the {kind} optimizer has its own; omit it")
    if isinstance(optimizer, (torch.optim.LBFGS, torch.optim.SparseAdam)):
        why = "evaluates the loss several times in a step" if kind == "LBFGS" else "needs sparse gradients"
        raise UsageError(f"DistributedOptimizer: expected an optimizer that takes gradients, got {kind}, which {why}")
    if is_elementwise(optimizer) or encodes(strategy, options):
        return
    if options.get("shard"):
        raise UsageError(
            f"DistributedOptimizer: shard: expected an elementwise optimizer such as AdamW with it, got {kind}, which "
            "needs all parameters"
        )
    if not serverless:
        raise UsageError(
            f"DistributedOptimizer: strategy {strategy} has its servers take the step, on parts of the parameters: "
            f"expected an elementwise optimizer such as AdamW, got {kind}: use allreduce or averaging"
        )
    if options.get("checkpoint_dir") is not None:
        raise UsageError(
            f"DistributedOptimizer: checkpoint_dir: expected an elementwise optimizer such as AdamW, whose state psgd "
            f"can save, got {kind}: save state_dict() yourself"
        )


def encodes(strategy: str, options: Mapping[str, Any]) -> bool:
    """Whether momentum comes before updates are encoded, so that the rule has to be psgd's own."""
    if options.get("compress") not in (None, "none"):
        return True
    return strategy == "decentralized" and options.get("peers") != "pairs"


def plain(optimizer: torch.optim.Optimizer) -> Rule:
    """The rule of psgd's own that has the formula of this SGD.

    Raises:
        UsageError: it is another one.
    """
    groups = optimizer.param_groups
    first = groups[0]
    wrong = None
    if type(optimizer) is not torch.optim.SGD:
        wrong = type(optimizer).__name__
    else:
        for name in ("dampening", "nesterov", "maximize"):
            if any(group[name] for group in groups):
                wrong = f"SGD with {name}={next(group[name] for group in groups if group[name])}"
        for name in ("lr", "momentum", "weight_decay"):
            if any(group[name] != first[name] for group in groups):
                wrong = f"SGD with groups of different {name}"
    if wrong is not None:
        raise UsageError(
            f"DistributedOptimizer: with compression, and with strategy decentralized unless peers=pairs, expected "
            f"torch.optim.SGD with at most momentum and weight_decay, the same for all parameters, got {wrong}"
        )
    momentum, decay = float(first["momentum"]), float(first["weight_decay"])
    return rules.momentum(momentum, decay) if momentum else rules.sgd(decay)
