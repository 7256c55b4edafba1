"""The options of checkpoints, and of the final weights."""

from collections.abc import Sequence
from pathlib import Path

from psgd.checkpoint import requests
from psgd.checkpoint.export import FORMATS
from psgd.kernels.errors import UsageError
from psgd.runtime.option import Option, from_zero, path, switch, whole

DIRECTORY = path("Folder for checkpoints, which all ranks can access.", "a folder's path", "DIR")
EVERY = whole(0, 0, "Optimizer steps between checkpoints; 0 saves only on signals.")
MINUTES = from_zero(0.0, "Minutes between checkpoints; 0 is off.")
KEEP = whole(1, 3, "How many of the newest checkpoints to keep, besides the best.")
KEEP_BEST = switch(False, "Save a checkpoint after each evaluation that is better than all before.")
RESUME = switch(False, "Resume from the newest complete checkpoint.")
SAVE_SIGNAL = Option(
    str,
    "USR2",
    "Signal to save and stop with exit code 85, such as TERM; not USR1 (saves and continues), INT, KILL or STOP.",
    requests.known,
    "a signal's name: USR2, TERM, HUP or any other but USR1, INT, KILL, STOP",
    metavar="NAME",
)
SAVE = Option(
    Path,
    None,
    "Write the final weights to this file: .npz for NumPy, .pt for PyTorch.",
    lambda file: file.suffix in FORMATS,
    f"a file's path that ends in {' or '.join(FORMATS)}",
    metavar="FILE",
)


def refuse(given: Sequence[str], directory: str) -> None:
    """Refuses options of checkpoints, if any were given, where there is no directory.

    Raises:
        UsageError: names them, and the option that is missing, as they are written.
    """
    if given:
        raise UsageError(f"{', '.join(given)}: expected {directory} with {'them' if given[1:] else 'it'}")
