"""The environment variables of collectives, and errors about them. An empty one counts as not set.

docs/collectives.md documents each.
"""

import math
import os
from dataclasses import dataclass

from psgd.kernels.errors import UsageError


@dataclass(frozen=True)
class Variables:
    """The settings of a Communicator.

    Attributes:
        shared: PSGD_SHARED, memory may be shared.
        checks: PSGD_CHECK, lines are exchanged between all ranks before each call.
        progress: PSGD_PROGRESS, a thread carries non-blocking calls out, or none; None: as the cores are.
        stall_s: PSGD_STALL, after which a call that waits is reported.
        timeout_s: PSGD_TIMEOUT, after which it ends the job.
    """

    shared: bool
    checks: bool
    progress: bool | None
    stall_s: float
    timeout_s: float

    @classmethod
    def read(cls) -> "Variables":
        """Reads them all.

        Raises:
            UsageError: one has a value that means nothing.
        """
        return cls(
            shared(),
            switch("PSGD_CHECK") or False,
            switch("PSGD_PROGRESS"),
            _seconds("PSGD_STALL", 30.0),
            _seconds("PSGD_TIMEOUT", math.inf),
        )


def shared() -> bool:
    """Whether memory may be shared with other processes: PSGD_SHARED=0 switches that off.

    Raises:
        UsageError: it is neither 0 nor 1.
    """
    return switch("PSGD_SHARED") is not False


def switch(name: str) -> bool | None:
    """What a variable switches, or None where it is not set.

    Raises:
        UsageError: it is neither 0 nor 1.
    """
    text = os.environ.get(name, "")
    if text not in {"", "0", "1"}:
        raise UsageError(f"{name}: expected 0 or 1, got {text!r}; fix or unset this environment variable")
    return text == "1" if text else None


def _seconds(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise UsageError(
            f"{name}: expected a number of seconds above 0, got {text!r}; fix or unset this environment variable"
        )
    return seconds
