"""IDX files, the format of MNIST and Fashion-MNIST, plain or gzip.

Two zero bytes, a type code, the number of dimensions, each dimension as a big-endian uint32, then the values,
big-endian, last dimension fastest (http://yann.lecun.com/exdb/mnist).
"""

import gzip
import struct
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from psgd.data.stream import check_size, fill
from psgd.kernels.errors import DataError

DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MAX_DIMENSIONS = 4
_GZIP_MAGIC = b"\x1f\x8b"


def read(path: Path) -> NDArray[Any]:
    """Reads one IDX file.

    Args:
        path: gzip if its name ends in `.gz`, plain otherwise.

    Returns:
        The values in native byte order. A read-only memory map for a plain file of bytes, so that only the
        rows that are used get read; an array in memory for gzip and for wider types.

    Raises:
        DataError: missing, unreadable, not IDX, empty, truncated, trailing bytes, corrupt gzip.
    """
    try:
        packed = path.stat().st_size
        with open(path, "rb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile(fileobj=raw) as stream:
                    return _native(_unpack(stream, packed, str(path)))
            shape, dtype = _header(raw, str(path))
        offset = 4 + 4 * len(shape)
        check_size(str(path), shape, dtype, packed - offset)
        return _native(np.memmap(path, dtype, "r", offset, shape))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _unpack(stream: gzip.GzipFile, packed: int, where: str) -> NDArray[Any]:
    try:
        shape, dtype = _header(stream, where)
    except EOFError as error:
        raise DataError(f"{where}: truncated in its header; fetch or write the file again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{where}: corrupt gzip data ({error}); fetch or write the file again") from error
    return fill(stream, shape, dtype, packed, where)


def _header(stream: IO[bytes] | gzip.GzipFile, where: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    magic = stream.read(4)
    if magic[:2] == _GZIP_MAGIC:
        raise DataError(f"{where}: is gzip data, but its name does not end in .gz; rename it")
    if len(magic) < 4:
        raise DataError(f"{where}: {'truncated in its header' if magic else 'empty file'}; expected IDX")
    dimensions = magic[3]
    if magic[:2] != b"\0\0" or magic[2] not in DTYPES or not 1 <= dimensions <= MAX_DIMENSIONS:
        raise DataError(
            f"{where}: bad magic {magic.hex(' ')}: expected an IDX file, 00 00, a type "
            f"({', '.join(f'{code:02x}' for code in DTYPES)}), 01 to {MAX_DIMENSIONS:02d} dimensions"
        )
    sizes = stream.read(4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise DataError(f"{where}: truncated in its header; fetch or write the file again")
    return struct.unpack(f">{dimensions}I", sizes), np.dtype(DTYPES[magic[2]])


def _native(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(values.dtype.newbyteorder("="), copy=False)
