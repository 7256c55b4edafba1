"""Weights in a file for other programs: `.npz` for NumPy, `.pt`, a state dict, for PyTorch."""

import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from psgd.kernels.errors import UsageError
from psgd.runtime import new_files

if TYPE_CHECKING:  # the command checks names with this file, and loads no NumPy for that
    from numpy.typing import NDArray

    from psgd.nn.layout import Layout

FORMATS = (".npz", ".pt")


def check(target: Path, what: str) -> None:
    """Checks that the weights can be written, without creating anything.

    Args:
        target: the file.
        what: `-o`, `--save`, for the message.

    Raises:
        UsageError: its name has another ending, its folder cannot be written, or it is a folder, or PyTorch is missing.
    """
    if target.suffix not in FORMATS:
        raise UsageError(f"{what} {target}: expected a name that ends in {' or '.join(FORMATS)}")
    new_files.check(what, target, replaced=True)
    if target.suffix == ".pt" and not _has_torch():
        raise UsageError(f"{what} {target}: needs PyTorch; pip install torch, or use .npz")


def write(target: Path, vector: "NDArray[Any]", layout: "Layout | None", what: str) -> list[str]:
    """Writes the parameters under their names, into a file that appears whole or not at all.

    Args:
        target: the file; checked, see `check`.
        vector: all parameters, on the host.
        layout: of the vector; None where it is not known: then the file has it whole, as `params`.
        what: as in `check`.

    Returns:
        The names.

    Raises:
        UsageError: it cannot be written. Then there is nothing new.
    """
    torch = target.suffix == ".pt"
    arrays = {"params": vector} if layout is None else (layout.for_torch if torch else layout.views)(vector)
    write_named(target, arrays, what)
    return list(arrays)


def write_named(target: Path, arrays: "Mapping[str, Any]", what: str) -> None:
    """Writes arrays of NumPy, or tensors of PyTorch on the CPU, as `write` does.

    Args:
        target: the file; checked, see `check`.
        arrays: by name; of bfloat16 a `.npz` has float32.
        what: as in `check`.

    Raises:
        UsageError: it cannot be written. Then there is nothing new.
    """
    torch = target.suffix == ".pt"
    try:
        with new_files.replacing(target) as file:
            (_torch if torch else _numpy)(file, arrays)
    except (OSError, RuntimeError) as error:  # PyTorch's writer raises the latter on a full disk
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"{what} {target}: cannot be written: {reason}") from None


def _has_torch() -> bool:
    try:
        return find_spec("torch") is not None
    except ValueError:  # it was set to None
        return False


def _numpy(file: BinaryIO, arrays: "Mapping[str, Any]") -> None:
    """As numpy.savez, which takes no array named `file`."""
    import numpy as np

    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                wide = array.float() if str(array.dtype) == "torch.bfloat16" else array  # NumPy has none
                np.lib.format.write_array(entry, np.asarray(wide, order="C"), allow_pickle=False)


def _torch(file: BinaryIO, arrays: "Mapping[str, Any]") -> None:
    """Each tensor with memory of its own, as a state dict that is loaded back has it."""
    import torch

    torch.save({name: torch.as_tensor(array).clone() for name, array in arrays.items()}, file)
