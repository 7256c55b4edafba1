"""Which kernel does a call of a size, with how many blocks: measured on two H200s, see docs/gpu.md.

`flagged` writes two bytes for each of data to each peer: best while time is latency. `pulled` moves everybody's array
to everybody, `staged` twice each rank's share, in two rounds: for two ranks that is the same number of bytes, so
`pulled` stays ahead for longer.
"""

from typing import NamedTuple

from psgd.kernels.device.peers.common import DEPTH, HEAD_BYTES

_PACK = 16
_ROW_PACKS = 396 * 2048  # of `staged` on two ranks: what all blocks have of one chunk in a piece
_MEGA = 1 << 20


class Shape(NamedTuple):
    """A kernel, and how it is started. `piece`: 16-byte packs of a block in a step, of `staged`."""

    kernel: str
    blocks: int
    threads: int
    piece: int = 0


def flagged_most(ranks: int) -> int:
    """Bytes of an array up to which `flagged` is used."""
    return _MEGA // ranks


def pulled_most(ranks: int) -> int:
    """Bytes of an array up to which `pulled` is used."""
    return 4 * _MEGA if ranks == 2 else 3 * _MEGA // ranks // _PACK * _PACK


def row_packs(ranks: int) -> int:
    """Packs of a slot of `staged`; slots of all ranks together take the same memory for each number of ranks."""
    return _ROW_PACKS * 2 // ranks


def layout(ranks: int) -> dict[str, int]:
    """Where slots lie in a region: constants of the kernels."""
    words = flagged_most(ranks) // 8
    flagged = HEAD_BYTES
    return {
        "FLAGGED_AT": flagged,
        "FLAGGED_WORDS": words,
        "PULLED_AT": flagged + 2 * ranks * words * _PACK,
        "PULLED_BYTES": pulled_most(ranks),
    }


def region_bytes(ranks: int) -> int:
    """Of a rank's region."""
    place = layout(ranks)
    return place["PULLED_AT"] + 2 * place["PULLED_BYTES"]


def wide_bytes(ranks: int) -> int:
    """Of a rank's slots for `staged`: of the first step and of the second, a number of pieces of each rank."""
    return 2 * DEPTH * ranks * row_packs(ranks) * _PACK


def reduction(ranks: int, nbytes: int) -> Shape:
    """How to all-reduce an array."""
    if 0 < nbytes <= flagged_most(ranks):
        words = -(-nbytes // 8)
        threads = 512 if words > 128 * 256 else 256
        return Shape("flagged", min(128, -(-words // threads)), threads)
    if nbytes <= pulled_most(ranks):
        blocks = 128 if nbytes >= 4 * _MEGA else 64
        return Shape("pulled", max(1, min(blocks, -(-nbytes // (_PACK * 512)))), 512)
    return staged(ranks, -(-nbytes // (_PACK * ranks)))


def staged(ranks: int, packs: int) -> Shape:
    """How to move chunks in steps.

    Args:
        ranks: of the group.
        packs: of 16 bytes, of the longest chunk.
    """
    most = row_packs(ranks)
    if packs <= min(most, 64 * 2048):
        blocks = max(1, min(64, -(-packs // 32)))
    elif packs <= min(most, 132 * 4096):
        blocks = 132
    else:
        return Shape("staged", 396, 512, most // 396)
    return Shape("staged", blocks, 512, max(1, -(-packs // blocks)))
