"""Words in shared memory, read and written so that neither compiler nor processor may reorder them.

A plain load in a loop may be hoisted out of it by the compiler, and a plain store may become visible before what was
written ahead of it. These are LLVM's atomic operations with acquire and release ordering. Addresses are integers.
"""

from typing import Any

from llvmlite import ir
from numba import types

from psgd.kernels.jit import intrinsic

_WORD = ir.IntType(64)


def call_on_x86(builder: Any, name: str) -> bool:
    """Adds a call of an LLVM function without arguments that only x86 has; False, and nothing, elsewhere."""
    module = builder.module
    if not module.triple.startswith(("x86_64", "i686", "amd64")):
        return False
    found = module.globals.get(name)
    builder.call(found or ir.Function(module, ir.FunctionType(ir.VoidType(), []), name), [])
    return True


@intrinsic
def load(typing_context: Any, address: Any) -> Any:
    """Reads the int64 at an address, a multiple of 8, with acquire ordering."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], _WORD.as_pointer()), "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def store(typing_context: Any, address: Any, value: Any) -> Any:
    """Writes an int64 to an address, a multiple of 8, with release ordering."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], builder.inttoptr(args[0], _WORD.as_pointer()), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def compare_and_swap(typing_context: Any, address: Any, expected: Any, value: Any) -> Any:
    """Writes an int64 to an address where `expected` stands, in one piece; returns whether it did. Orders both ways."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = builder.inttoptr(args[0], _WORD.as_pointer())
        return builder.extract_value(builder.cmpxchg(at, args[1], args[2], "acq_rel", "acquire"), 1)

    return types.boolean(types.int64, types.int64, types.int64), generate


@intrinsic
def fetch_and_add(typing_context: Any, address: Any, value: Any) -> Any:
    """Adds to the int64 at an address, in one piece; returns what stood there before. Orders both ways."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(args[0], _WORD.as_pointer()), args[1], "acq_rel")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def pause(typing_context: Any) -> Any:
    """Tells an x86 processor that this is a spinning wait; nothing elsewhere."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        call_on_x86(builder, "llvm.x86.sse2.pause")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def pointer(typing_context: Any, address: Any, element: Any) -> Any:
    """An address as a pointer to elements of a scalar class such as `np.float32`, for `numba.carray`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(element.instance_type)(types.int64, element), generate
