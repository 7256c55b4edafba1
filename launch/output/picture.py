"""Pictures: what kinds there are, and one file for each that appears whole or not at all."""

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

from psgd.kernels.errors import UsageError
from psgd.runtime import new_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")
_LONGEST = 48


def check(what: str, target: Path) -> None:
    """Refuses, before anything is measured or read, what could not be drawn.

    Args:
        what: the option, for the message.
        target: the file.

    Raises:
        UsageError: an unknown format, a folder that is missing or cannot be written, or no matplotlib.
    """
    if target.suffix.lower() not in FORMATS:
        raise UsageError(f"{what} {target}: expected a name that ends in {', '.join(FORMATS)}")
    new_files.check(what, target, replaced=True)
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f"{what} {target}: needs matplotlib; pip install matplotlib")


def figure(width: float, height: float) -> "Figure":
    """An empty figure of so many inches. It needs no display, whatever a notebook has put into the environment."""
    os.environ.pop("MPLBACKEND", None)  # matplotlib refuses to load where it does not know the one that is named
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def label(name: str) -> str:
    """A file's name as a label: matplotlib takes dollars for formulas and hides what begins with an underscore."""
    text = name.encode(errors=new_files.AS_NAMES).decode(errors="replace")
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]}...{text[-_LONGEST // 2 :]}"
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def save(drawn: "Figure", what: str, target: Path) -> None:
    """Writes a figure; the file's suffix gives the format.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        with new_files.replacing(target) as file:
            drawn.savefig(file, format=target.suffix[1:].lower(), dpi=150)
    except OSError as error:
        raise UsageError(f"{what} {target}: cannot be written: {error.strerror or error}") from None
