"""What goes together with parts of the optimizer or the model on the host of a GPU, for the command."""

from collections.abc import Mapping
from typing import Any

from psgd.kernels.errors import UsageError


def check(values: Mapping[str, Any], spell: Any) -> None:
    """Refuses what does not go together.

    Args:
        values: options by name: offload, offload_staleness, device, mesh, shard.
        spell: how messages write options, a `psgd.strategies.requirements.Spelling`.

    Raises:
        UsageError: the first that does not fit.
    """
    what, late = values["offload"], values["offload_staleness"]
    if what is not None and values["device"] != "cuda":
        raise UsageError(
            f"{spell.given('offload', what)}: expected {spell.assigned('device', 'cuda')} with it: workers on cores "
            "have everything on the host"
        )
    for other in ("mesh", "shard"):
        if what is not None and (given := values[other]) is not None:
            raise UsageError(f"{spell.given('offload', what)}: not with {spell.given(other, given)}; omit one of them")
    if late and what != "optimizer":
        reason = ": layers that stream in are the newest" if what else ""
        raise UsageError(
            f"{spell.given('offload_staleness', late)}: expected {spell.assigned('offload', 'optimizer')} with it"
            f"{'' if what is None else f', got {what}'}{reason}"
        )
