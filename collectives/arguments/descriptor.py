"""A call's descriptor: what a rank is about to do, in words by which ranks find out whether they agree.

Only the first words must agree (`agree`); what follows is for reports, and for kernels that look for a peer's memory.
`psgd.collectives.shm.layout` defines which word is where.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.collectives.arguments.operations import Operation
from psgd.collectives.shm import layout

CALLS = (
    "?",
    "Allreduce",
    "Reduce_scatter",
    "Reduce_scatter_block",
    "Allgather",
    "Allgatherv",
    "Bcast",
    "Reduce",
    "Barrier",
    "empty",
    "free",
)
KINDS = (
    *("?", "float32", "float64", "float16", "bfloat16", "complex64", "complex128", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
STARTED = 1 << 7  # in a signature of a report: a non-blocking or persistent call
ON_DEVICE = 1 << 23  # in a signature: the ring on GPUs does it
PREPARES = 1 << 31  # in a signature: a persistent call is made, not started
SHOWN_DIMENSIONS = 4
Words = NDArray[np.int64]
_CALL = {name: i for i, name in enumerate(CALLS)}
_KIND = {name: i for i, name in enumerate(KINDS)}
_PADDING = (0,) * SHOWN_DIMENSIONS
_pack: Any = struct.Struct(f"{layout.DESCRIPTOR_WORDS}q").pack_into


def signature(call: str, kind: str = "?", op: Operation | None = None, root: int = 0, algorithm: int = 0) -> int:
    """Packs what is not a number of elements into one word.

    Args:
        call: of CALLS.
        kind: of KINDS.
        op: the reduction, if there is one.
        root: of Bcast and Reduce.
        algorithm: the number of the one that the caller asked for, 0 for none.
    """
    number = 0 if op is None else op.number
    return _CALL[call] | number << 8 | _KIND[kind] << 16 | algorithm << 24 | root << 32


def fingerprint(shape: Sequence[int]) -> int:
    """A word that differs between shapes, or lists of counts; 0 for a flat array, which agrees with every shape."""
    return 0 if len(shape) < 2 else 1 + zlib.crc32(np.asarray(shape, np.int64).tobytes())


def fill(descriptor: Words, sign: int, count: int, shape: Sequence[int], mark: int) -> None:
    """Writes a call's words to a descriptor.

    Args:
        descriptor: DESCRIPTOR_WORDS words.
        sign: of `signature`.
        count: elements, the same on all ranks.
        shape: for the report.
        mark: the word that must agree where it is not 0, of `fingerprint`.
    """
    shown = (*shape[:SHOWN_DIMENSIONS], *_PADDING[len(shape) :])
    _pack(descriptor, 0, sign, count, mark, 0, 0, 0, -1, 0, 0, -1, 0, len(shape), *shown)


def agree(a: Sequence[int] | Words, b: Sequence[int] | Words) -> bool:
    """Whether two descriptors are of one call and neither reports an error."""
    return bool(
        a[layout.SIGNATURE] == b[layout.SIGNATURE]
        and a[layout.COUNT] == b[layout.COUNT]
        and not (a[layout.SHAPE] and b[layout.SHAPE] and a[layout.SHAPE] != b[layout.SHAPE])
        and not a[layout.ERROR]
        and not b[layout.ERROR]
    )
