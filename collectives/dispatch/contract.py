"""What ranks must agree on in a call, as a line of words, and the error that all of them raise where they do not."""

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.collectives.shm import layout
from psgd.collectives.arguments.operations import Operation, operation_name
from psgd.kernels.errors import AgreedContractError, AgreedUsageError, Error

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
)
KINDS = (
    *("?", "float32", "float64", "float16", "bfloat16", "complex64", "complex128", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
ALGORITHMS = (
    *("?", "inline", "slots", "direct", "ring", "recursive_doubling", "rabenseifner", "binomial", "chain"),
    *("hierarchical", "native"),
)
ON_DEVICE = 1 << 23  # in a signature: the ring on GPUs does it
_CALL = {name: i for i, name in enumerate(CALLS)}
_KIND = {name: i for i, name in enumerate(KINDS)}
_ALGORITHM = {name: i for i, name in enumerate(ALGORITHMS)}
_DIMENSIONS = layout.DIMENSIONS
_SHOWN_DIMENSIONS = 4
_PADDING = (0,) * _SHOWN_DIMENSIONS
_pack: Any = struct.Struct(f"{layout.LINE_WORDS}q").pack_into
Words = NDArray[np.int64]


def signature(call: str, kind: str = "?", op: Operation | None = None, root: int = 0, algorithm: str = "?") -> int:
    """Packs what is not a number of elements into one word."""
    number = 0 if op is None else op.number
    return _CALL[call] | number << 8 | _KIND[kind] << 16 | _ALGORITHM[algorithm] << 24 | root << 32


def fingerprint(shape: Sequence[int]) -> int:
    """A word that tells shapes, or lists of counts, apart; 0 for a flat array, which agrees with every shape."""
    return 0 if len(shape) < 2 else 1 + zlib.crc32(np.asarray(shape, np.int64).tobytes())


def fill(line: Words, sign: int, count: int, shape: Sequence[int], tells: int) -> None:
    """Writes a call's words to a line.

    Args:
        line: LINE_WORDS words.
        sign: of `signature`.
        count: elements, the same on all ranks.
        shape: for the report.
        tells: the word that must agree where it is not 0, of `fingerprint`.
    """
    shown = (*shape[:_SHOWN_DIMENSIONS], *_PADDING[len(shape) :])
    _pack(line, 0, sign, count, tells, 0, 0, 0, -1, 0, 0, -1, 0, len(shape), *shown)


def describe(line: Sequence[int] | Words) -> str:
    """Says a line in words: `Allreduce(float32, 100000 elements, SUM)`."""
    sign = int(line[layout.SIGNATURE])
    call, op, kind, algorithm, root = sign & 255, sign >> 8 & 255, sign >> 16 & 127, sign >> 24 & 255, sign >> 32
    said = []
    if kind:
        said.append(KINDS[kind] if kind < len(KINDS) else "?")
        dimensions = int(line[_DIMENSIONS])
        extents = tuple(int(n) for n in line[_DIMENSIONS + 1 :][:dimensions])
        if 1 < dimensions <= _SHOWN_DIMENSIONS:
            said.append(f"shape {extents}")
        else:
            said.append(f"{int(line[layout.COUNT])} elements")
            if dimensions > _SHOWN_DIMENSIONS:
                said.append(f"{dimensions} dimensions #{int(line[layout.SHAPE]):x}")
    elif int(line[layout.COUNT]):
        said.append(f"{int(line[layout.COUNT])} bytes")
    if sign & ON_DEVICE:
        said.append("on GPUs")
    if op:
        said.append(operation_name(op))
    name = CALLS[call] if call < len(CALLS) else "?"
    if name in {"Bcast", "Reduce"}:
        said.append(f"root {root}")
    if algorithm:
        said.append(f"algorithm {ALGORITHMS[algorithm]}")
    return f"{name}({', '.join(said)})"


def agree(a: Sequence[int] | Words, b: Sequence[int] | Words) -> bool:
    """Whether two lines are of one call and neither tells of an error."""
    return bool(
        a[layout.SIGNATURE] == b[layout.SIGNATURE]
        and a[layout.COUNT] == b[layout.COUNT]
        and not (a[layout.SHAPE] and b[layout.SHAPE] and a[layout.SHAPE] != b[layout.SHAPE])
        and not a[layout.ERROR]
        and not b[layout.ERROR]
    )


def judge(ranks: Sequence[int], lines: Sequence[Any], texts: Sequence[str]) -> Error:
    """Makes the error that all ranks raise.

    Args:
        ranks: in the communicator, ascending.
        lines: one for each.
        texts: what each has to say of its own arguments; empty where they are right.

    Returns:
        A UsageError where some rank's own arguments are wrong, else a ContractError.
    """
    if any(texts):
        return AgreedUsageError(tell(texts, ranks))
    said = _grouped([(rank, _described(line)) for rank, line in zip(ranks, lines, strict=True)])
    calls = ", ".join(f"{who} {text}" for who, text in said)
    return AgreedContractError(f"ranks disagree on a collective call: {calls}; all must pass the same")


def tell(texts: Sequence[str], ranks: Sequence[int]) -> str:
    """What ranks have to say, some of which may have nothing, with their names unless all say the same."""
    said = _grouped([(rank, text) for rank, text in zip(ranks, texts, strict=True) if text])
    if len(said) == 1 and all(texts):
        return said[0][1]
    return "; ".join(f"{who}: {text}" for who, text in said)


def _described(line: Any) -> str:
    text = describe(line)
    sign = int(line[layout.SIGNATURE])
    if CALLS[sign & 255] in {"Reduce_scatter", "Allgatherv"}:
        text = f"{text[:-1]}, counts #{int(line[layout.SHAPE]):x})"
    return text


def _grouped(said: Sequence[tuple[int, str]]) -> list[tuple[str, str]]:
    groups: dict[str, list[int]] = {}
    for rank, text in said:
        groups.setdefault(text, []).append(rank)
    return [(name_ranks(ranks), text) for text, ranks in groups.items()]


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, or `ranks 0-2, 5`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join("-".join(map(str, run)) for run in runs)
