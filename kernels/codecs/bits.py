"""Bits in memory, and bits as numbers. The first bit is the lowest of the first byte, on every device."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from psgd.kernels.jit import intrinsic, part

_WORD, _FLOAT = ir.IntType(64), ir.FloatType()
SLACK = 8
"""Bytes after the last one written that `put` may set to zero."""


@intrinsic
def load_word(typing_context: Any, address: Any) -> Any:
    """Reads the uint64 at any address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], _WORD.as_pointer()), align=1)

    return types.uint64(types.int64), generate


@intrinsic
def store_word(typing_context: Any, address: Any, word: Any) -> Any:
    """Writes a uint64 to any address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], builder.inttoptr(args[0], _WORD.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), generate


@intrinsic
def trailing_zeros(typing_context: Any, word: Any) -> Any:
    """How many bits of a uint64 are zero below its lowest one; 64 where there is none."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.IntType(1)(0))

    return types.int64(types.uint64), generate


@intrinsic
def to_bits(typing_context: Any, value: Any) -> Any:
    """The 32 bits of a float32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.zext(builder.bitcast(args[0], ir.IntType(32)), _WORD)

    return types.uint64(types.float32), generate


@intrinsic
def from_bits(typing_context: Any, bits: Any) -> Any:
    """The float32 that 32 bits mean."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.trunc(args[0], ir.IntType(32)), _FLOAT)

    return types.float32(types.uint64), generate


@part
def put(address: int, bit: int, value: int, width: int) -> int:
    """Writes the `width` (to 57) low bits of a uint64 that has no others at a bit position; returns the next one.

    Sets the rest of the eight bytes to zero, so bits are written in their order.
    """
    at = address + (bit >> 3)
    shift = np.uint64(bit & 7)
    before = load_word(at) & ((np.uint64(1) << shift) - np.uint64(1))
    store_word(at, before | (value << shift))
    return bit + width


@part
def peek(payload: np.ndarray, bit: int) -> int:
    """The bits from a position on, 57 at least, as a uint64; zeros beyond the array's end."""
    byte = bit >> 3
    if byte + 8 <= payload.size:
        word = load_word(payload.ctypes.data + byte)
    else:
        word = np.uint64(0)
        for i in range(max(0, payload.size - byte)):
            word |= np.uint64(payload[byte + i]) << np.uint64(8 * i)
    shifted: int = word >> np.uint64(bit & 7)
    return shifted
