"""Reads an array of a promised size from a stream, and believes neither the promise nor the stream."""

import gzip
import math
import zlib
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from psgd.kernels.errors import DataError

CHUNK = 1 << 20
DEFLATE_RATIO = 1032
"""The most bytes that one byte of deflate (gzip, zip) can unpack to."""


def describe(shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    """Says a shape as in `60000 x 28 x 28 uint8`."""
    return f"{' x '.join(map(str, shape))} {dtype}"


def check_size(where: str, shape: tuple[int, ...], dtype: np.dtype[Any], present: int) -> None:
    """Compares the bytes that a header promises with those that follow it.

    Raises:
        DataError: nothing promised (empty), too few bytes (truncated) or too many (trailing).
    """
    if math.prod(shape) == 0:
        raise DataError(f"{where}: empty: its header says {describe(shape, dtype)}")
    expected = math.prod(shape) * dtype.itemsize
    if present < expected:
        raise DataError(
            f"{where}: truncated: its header says {describe(shape, dtype)} = {expected} bytes of data, "
            f"got {present}; fetch or write the file again"
        )
    if present > expected:
        raise DataError(
            f"{where}: trailing bytes: its header says {describe(shape, dtype)} = {expected} bytes of data, "
            f"got more; fetch or write the file again"
        )


def fill(
    stream: IO[bytes] | gzip.GzipFile, shape: tuple[int, ...], dtype: np.dtype[Any], packed: int, where: str
) -> NDArray[Any]:
    """Reads the whole rest of a stream into a new array.

    Args:
        stream: positioned behind the header.
        shape: as the header says.
        dtype: as the header says, any byte order.
        packed: bytes of the compressed file; bounds what is allocated, whatever the header says.
        where: the file's name for messages.

    Returns:
        A C-contiguous array of `shape` and `dtype`.

    Raises:
        DataError: empty, truncated, trailing or corrupt.
    """
    expected = math.prod(shape) * dtype.itemsize
    if expected == 0:
        check_size(where, shape, dtype, 0)
    if expected > packed * DEFLATE_RATIO:
        raise DataError(
            f"{where}: truncated: its header says {describe(shape, dtype)} = {expected} bytes of data, which "
            f"cannot come from {packed} compressed bytes; fetch or write the file again"
        )
    data = np.empty(expected, np.uint8)
    got = 0
    try:
        while got < expected:
            piece = stream.read(min(CHUNK, expected - got))
            if not piece:
                break
            data[got : got + len(piece)] = np.frombuffer(piece, np.uint8)
            got += len(piece)
        more = len(stream.read(1))
    except EOFError as error:
        raise DataError(
            f"{where}: truncated in its compressed data after {got} of {expected} bytes; fetch or write the file again"
        ) from error
    except (OSError, zlib.error) as error:
        raise DataError(f"{where}: corrupt compressed data ({error}); fetch or write the file again") from error
    check_size(where, shape, dtype, got + more)
    return data.view(dtype).reshape(shape)
