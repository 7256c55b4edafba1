"""Cache lines moved one at a time: past the cache, or into it ahead of their use.

Past the cache goes what is not read again soon, least of all by this processor: an ordinary store first fetches the
line that it will overwrite, and pushes out what other data was cached.
"""

from typing import Any

from llvmlite import ir
from numba import types

from psgd.kernels.jit import intrinsic
from psgd.kernels.memory.atomic import call_on_x86

LINE_BYTES = 64


@intrinsic
def put_line(typing_context: Any, to: Any, source: Any) -> Any:
    """Copies 64 bytes to an address that is a multiple of 64, past the cache where the processor can."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(ir.IntType(64), 8).as_pointer()
        value = builder.load(builder.inttoptr(args[1], vector), align=1)
        store = builder.store(value, builder.inttoptr(args[0], vector), align=LINE_BYTES)
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Has the line of an address, which need not be one of this process, come into the second-level cache."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], kind)
        reading, second_level, data = number(0), number(2), number(1)
        builder.call(function, [builder.inttoptr(args[0], pointer), reading, second_level, data])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def drain(typing_context: Any) -> Any:
    """Has all that was put past the cache be seen before what is stored next."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not call_on_x86(builder, "llvm.x86.sse.sfence"):
            builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate
