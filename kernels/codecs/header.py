"""The 24 bytes that every payload begins with, and their checksum.

The checksum is a sum of mixed words, so that any number of threads can make it, in any order.
"""

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.kernels.codecs.bits import load_word
from psgd.kernels.errors import CodecError
from psgd.kernels.jit import kernel, part

NBYTES = 24
_FORM = struct.Struct("<IIIIIf")
_MAGIC, _VERSION = 0xC5, 1
_COVERED = 8  # the checksum is over all bytes from here on, and the first word


@dataclass(frozen=True)
class PayloadHeader:
    """What a payload says of itself.

    Args:
        kind: which codec, 1 to 15.
        width: bits that an entry has of its own.
        log_block: logarithm of the elements of a block.
        n: elements of the vector.
        count: entries sent.
        tau: what a sign stands for; 0 where nothing does.
    """

    kind: int
    width: int
    log_block: int
    n: int
    count: int
    tau: float

    @property
    def signature(self) -> int:
        """The first word."""
        return _MAGIC | (_VERSION << 4 | self.kind) << 8 | self.width << 16 | self.log_block << 24


def write(payload: NDArray[np.uint8], nbytes: int, header: PayloadHeader) -> None:
    """Writes a header before the other bytes, which are final, of a payload of `nbytes`."""
    words: list[Any] = [header.signature, 0, header.n, header.count, nbytes, header.tau]
    _FORM.pack_into(payload.data, 0, *words)
    words[1] = checksum(payload[_COVERED:nbytes], header.signature)
    _FORM.pack_into(payload.data, 0, *words)


def read(payload: NDArray[np.uint8], kind: int, n: int) -> PayloadHeader:
    """Reads the header of a payload for a vector of `n` elements, and verifies its checksum.

    Raises:
        CodecError: it is damaged, of another codec or of another length.
    """
    if payload.size < NBYTES:
        raise CodecError(f"a payload of {payload.size} bytes: expected {NBYTES} at least")
    signature, stated, its_n, count, nbytes, tau = _FORM.unpack_from(payload.data)
    header = PayloadHeader(kind, signature >> 16 & 255, signature >> 24, its_n, count, tau)
    if signature != header.signature:
        raise CodecError(f"a payload that begins with {signature:#010x}: damaged, or of another codec")
    if nbytes != payload.size:
        raise CodecError(f"a payload of {payload.size} bytes that says {nbytes}: truncated or joined")
    if stated != checksum(payload[_COVERED:], signature):
        raise CodecError(f"a payload of {nbytes} bytes is damaged: its checksum is wrong")
    if its_n != n:
        raise CodecError(f"a payload for {its_n} elements: expected {n}")
    if count > n or not 0.0 <= tau < np.inf:
        raise CodecError(f"an invalid payload: {count} of {n} elements, each {tau}")
    return header


@kernel
def checksum(data: np.ndarray, first: int) -> int:
    """The sum of all 64-bit words, each mixed with its place (SplitMix64: Steele, Lea and Flood 2014); its upper half.

    The last word is filled up with zeros; the number of bytes and a word of 32 bits, `first`, are added to the sum.
    """
    address, words = data.ctypes.data, data.size >> 3
    total = np.uint64(0)
    place = np.uint64(0)
    for i in range(words):
        place += np.uint64(0x9E3779B97F4A7C15)
        total += _mixed(load_word(address + 8 * i) + place)
    last = np.uint64(0)
    for i in range(data.size & 7):
        last |= np.uint64(data[8 * words + i]) << np.uint64(8 * i)
    total += _mixed(last + place + np.uint64(0x9E3779B97F4A7C15))
    total = _mixed(total + np.uint64(data.size) + (np.uint64(first) << np.uint64(32)))
    upper: int = np.int64(total >> np.uint64(32))
    return upper


@part
def _mixed(word: int) -> int:
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: int = word ^ (word >> np.uint64(31))
    return mixed
