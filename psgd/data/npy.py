"""NumPy's files: `.npy` memory-mapped, `.npz` read whole. Never unpickles."""

import warnings
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from psgd.data.stream import check_size, fill
from psgd.kernels.errors import DataError


def read(path: Path) -> NDArray[Any]:
    """Maps one `.npy` file.

    Returns:
        A read-only memory map: only the rows that are used get read from the disk.

    Raises:
        DataError: missing, unreadable, not `.npy`, object dtype, Fortran order, empty, truncated, trailing.
    """
    try:
        with open(path, "rb") as stream:
            shape, fortran, dtype = _header(stream, str(path))
            offset = stream.tell()
        if fortran:
            raise DataError(
                f"{path}: is in Fortran order, whose rows cannot be mapped; save numpy.ascontiguousarray(array) instead"
            )
        check_size(str(path), shape, dtype, path.stat().st_size - offset)
        return np.memmap(path, dtype, "r", offset, shape)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def archive_names(path: Path) -> list[str]:
    """The names of all arrays in a `.npz` that can be read, in its order."""
    with zipfile.ZipFile(path) as archive:
        return [each.removesuffix(".npy") for each in archive.namelist() if each.endswith(".npy")]


def dimensions(path: Path, name: str | None = None) -> int:
    """How many dimensions a `.npy` has, or one array of a `.npz`; 0 where that cannot be read."""
    try:
        if name is None:
            with open(path, "rb") as stream:
                return len(_header(stream, str(path))[0])
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as member:
            return len(_header(member, str(path))[0])
    except Exception:  # as in `read_archive`; this is only asked for an error's text
        return 0


def read_archive(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Reads those of the named arrays that a `.npz` holds.

    Returns:
        Name to array, C-contiguous, in memory.

    Raises:
        DataError: missing, unreadable, not a zip archive, corrupt, or a bad array (see `read`).
    """
    try:
        with zipfile.ZipFile(path) as archive:
            present = set(archive.namelist())
            return {name: _member(archive, name, path) for name in names if f"{name}.npy" in present}
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    # zipfile answers damaged archives with half a dozen unrelated types, struct.error and EOFError among them
    except Exception as error:
        raise DataError(f"{path}: is not a valid .npz (zip) archive ({error}); write it again") from error


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> NDArray[Any]:
    where = f"{path} ({name})"
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{where}: compressed with a method that numpy does not use; use savez or savez_compressed")
    packed = min(info.compress_size, path.stat().st_size)
    try:
        with archive.open(info) as stream:
            shape, fortran, dtype = _header(stream, where)
            values = fill(stream, shape[::-1] if fortran else shape, dtype, packed, where)
    except zipfile.BadZipFile as error:
        raise DataError(f"{where}: corrupt ({error}); write the file again") from error
    return np.ascontiguousarray(values.T) if fortran else values


def _header(stream: IO[bytes], where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            version = npy_format.read_magic(stream)
            if version == (1, 0):
                shape, fortran, dtype = npy_format.read_array_header_1_0(stream)
            else:
                shape, fortran, dtype = npy_format.read_array_header_2_0(stream)
    except (OSError, zipfile.BadZipFile):
        raise
    # parsed as a Python literal: damage shows as SyntaxError, ValueError, TokenError, MemoryError
    except Exception as error:
        raise DataError(f"{where}: is not a valid .npy file; write it again with numpy.save") from error
    if dtype.hasobject:
        raise DataError(
            f"{where}: holds Python objects (pickles), which are never loaded; save a plain array: "
            "uint8, float32 or float64 for samples, integers for labels"
        )
    if min(shape, default=0) < 0 or dtype.itemsize == 0:
        raise DataError(f"{where}: impossible shape {shape} of {dtype}; write it again with numpy.save")
    return shape, fortran, dtype
