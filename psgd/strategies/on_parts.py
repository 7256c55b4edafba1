"""Which strategies and options go together with a model that is cut over several ranks. Imports no strategy.

Each part of the model is trained by itself, by its own ranks along the data axis: same strategy, same samples, an
exchange of its own. What decides by what it sees of the whole vector, or by the time at which something arrives, would
decide differently on different parts.
"""

from collections.abc import Mapping
from typing import Any

from psgd.kernels.errors import UsageError
from psgd.strategies import catalog
from psgd.strategies.requirements import LIBRARY, Spelling

_NEVER = {
    "softsync": "parts would group different pushes, and could wait for each other for ever",
    "hogwild": "others would change parameters between a microbatch's forward and backward pass",
    "decentralized": "others' updates would reach the parts at different steps",
}
"""Strategies that no cut model has, and why."""
_NOT_IN_STEP = ("async", "ssp")
"""Those whose servers apply pushes in an order of their own; fine where no two ranks hold the same parameter."""
_AT_ONE_STEP = {"clip_norm": "norm", "checkpoint_dir": "version"}
"""Options for which all parts must be at the same step, and what they have then."""
_PARTIAL: dict[str, tuple[object, str]] = {
    "compress": ("none", "what is sent is chosen in each part by itself, and shared parameters would drift apart"),
    "record": (None, "each part has an order of its own"),
    "replay": (None, "each part has an order of its own"),
    "on_nan": ("warn", "a rank sees its own part of a gradient only"),
    "server_device": ("cpu", "parts are updated on cores"),
}
"""Options with the one value that a cut model takes beside None, and why."""


def check(
    name: str, values: Mapping[str, Any], own: Mapping[str, Any], sizes: Mapping[str, int], spell: Spelling = LIBRARY
) -> None:
    """Refuses what does not go together with a cut model.

    Args:
        name: the strategy's.
        values: options by name.
        own: the strategy's own options that were given.
        sizes: ranks along each axis.
        spell: how messages write options.

    Raises:
        UsageError: the first that does not fit, and why.
    """
    text = ",".join(f"{axis}={size}" for axis, size in sizes.items())
    subject = f"{spell.given('mesh', text)}: "
    if reason := _NEVER.get(name):
        raise UsageError(f"{subject}expected another strategy than {name}: {reason}")
    if name in _NOT_IN_STEP and sizes.get("tensor", 1) > 1:
        raise UsageError(
            f"{subject}expected another strategy than {name}: each tensor rank's server would apply pushes in an order "
            "of its own, and parameters that all tensor ranks have would drift apart"
        )
    if name == "easgd" and own.get("easgd_order", "sync") != "sync":
        raise UsageError(f"{subject}expected {spell.assigned('easgd_order', 'sync')}: other orders differ by part")
    for option, common in _AT_ONE_STEP.items():
        if name in _NOT_IN_STEP and values.get(option):
            raise UsageError(
                f"{spell.given(option, values[option])}: with strategy {name} the parts of {text} are at different "
                f"steps, so the model has no {common}; omit it"
            )
    if values.get("keep_best") and catalog.find(name).servers:
        raise UsageError(
            f"{spell.name('keep_best')}: not with {spell.given('mesh', text)} and servers: the parts' servers could "
            f"not save at one step; omit it, or use {spell.assigned('strategy', 'allreduce')}"
        )
    for option, (alone, reason) in _PARTIAL.items():
        if (value := values.get(option)) not in (None, alone):
            raise UsageError(f"{spell.given(option, value)}: not with {spell.given('mesh', text)}: {reason}; omit it")
    if values.get("placement") not in (None, "auto", "dedicated"):
        raise UsageError(
            f"{spell.given('placement', values['placement'])}: not with {spell.given('mesh', text)}: its servers are "
            "the first ranks along data; omit it"
        )


def check_without_flushes(schedule: str, name: str, values: Mapping[str, Any], spell: Spelling = LIBRARY) -> None:
    """Refuses what does not go together with a pipeline that is never empty, whose stages take their steps apart.

    Args:
        schedule: its name.
        name: as `check`.
        values: as `check`.
        spell: as `check`.

    Raises:
        UsageError: as `check`.
    """
    subject = f"{spell.given('pipe_schedule', schedule)}: "
    if name in _NOT_IN_STEP:
        raise UsageError(
            f"{subject}expected another strategy than {name}: a gradient would be late by the stages and by the "
            f"workers, by as much as the time decides; use {spell.assigned('strategy', 'allreduce')} or sync"
        )
    if values.get("clip_norm"):
        raise UsageError(
            f"{subject}expected {spell.assigned('clip_norm', 0)}: stages take their steps at different times, so no "
            "rank has the norm of a whole gradient"
        )
