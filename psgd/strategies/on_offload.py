"""What goes together with parts of the optimizer or the model on the host of a GPU, for the command."""

from collections.abc import Mapping
from typing import Any

from psgd.kernels.errors import UsageError
from psgd.strategies.requirements import LIBRARY, Spelling


def check(values: Mapping[str, Any], spell: Spelling = LIBRARY) -> None:
    """Refuses what does not go together.

    Args:
        values: options by name: offload, offload_staleness, device.
        spell: how messages write options.

    Raises:
        UsageError: the first that does not fit.
    """
    what, late = values["offload"], values["offload_staleness"]
    if what is not None and values["device"] != "cuda":
        raise UsageError(
            f"{spell.given('offload', what)}: expected {spell.assigned('device', 'cuda')} with it: workers on cores "
            "have everything on the host"
        )
    if late and what != "optimizer":
        reason = ": layers that stream in are the newest" if what else ""
        raise UsageError(
            f"{spell.given('offload_staleness', late)}: expected {spell.assigned('offload', 'optimizer')} with it"
            f"{'' if what is None else f', got {what}'}{reason}"
        )
