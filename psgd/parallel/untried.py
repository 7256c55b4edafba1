"""What has run on simulated GPUs only is refused, unless its user wants to be the first to try it."""

import os

VARIABLE = "PSGD_UNTRIED"


def wanted() -> bool:
    """Whether the user wants to try it."""
    return os.environ.get(VARIABLE) == "1"


def complaint(what: str) -> str | None:
    """Why it is refused, or None.

    Args:
        what: has not run on GPUs, in the words of its users.
    """
    return None if wanted() else f"{what}: this has run on simulated GPUs only; {VARIABLE}=1 lets you try it on yours"
