"""The update rules by name, and the options of the optimizer. Loads no rule.

A rule is one function that takes `weight_decay`, and `factor` where it has momentum, and returns a
`psgd.optim.rules.Rule`.
"""

from dataclasses import dataclass

from psgd.optim import schedules, staleness
from psgd.runtime.option import above_zero, below_one, from_zero, one_of


@dataclass(frozen=True)
class RuleEntry:
    """What is known of a rule before its module is imported.

    Attributes:
        module: has the function.
        function: makes the rule.
        momentum: it takes `factor`.
        before_codec: its momentum and weight decay can come before a codec, on each worker; plain SGD follows it.
    """

    module: str
    function: str
    momentum: bool = False
    before_codec: bool = False


RULES: dict[str, RuleEntry] = {
    "sgd": RuleEntry("psgd.optim.rules", "sgd", before_codec=True),
    "momentum": RuleEntry("psgd.optim.rules", "momentum", momentum=True, before_codec=True),
    "nesterov": RuleEntry("psgd.optim.rules", "nesterov", momentum=True),
    "adam": RuleEntry("psgd.optim.rules", "adam"),
}

_WITH_MOMENTUM = " and ".join(name for name, rule in RULES.items() if rule.momentum)

LR = above_zero(0.1, "Learning rate.")
LR_OF_SCHEDULE = from_zero(None, "Of a schedule it may be 0, as at the start of a warm-up.")
OPTIMIZER = one_of(RULES, "sgd", "Update rule, applied on the servers.")
MOMENTUM = below_one(0.9, f"Momentum factor of {_WITH_MOMENTUM}.")
WEIGHT_DECAY = from_zero(0.0, "Coefficient of L2 regularization.")
SCHEDULE = one_of(schedules.NAMES, "constant", "How the learning rate changes during the run.")
CLIP_NORM = from_zero(0.0, "Maximum norm of the whole gradient; 0 is off.")
REDUCTION = one_of(("mean", "sum"), "mean", "mean over the samples; sum multiplies that by the number of workers.")
ON_NAN = one_of(("warn", "skip", "stop"), "warn", "If a gradient is not finite: warn, skip the gradient, or stop.")
STALENESS_LR = one_of(staleness.NAMES, "none", "How steps of stale gradients are scaled down.")
