"""What the kernels of peer calls are compiled for: the type of the elements, the type of sums, and the operation.

16-bit floats are summed in float32 and rounded once. The other types are those of `psgd.kernels.device.combine`, with
the same bits.
"""

from psgd.kernels.device.combine import FORMULAS, TYPES

_HALF = r"""
typedef unsigned short T;
typedef float A;
"""
_CONVERT = {
    "float16": r"""
__device__ __forceinline__ A widen(T x) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x)); return f; }
__device__ __forceinline__ T narrow(A x) { T h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x)); return h; }
""",
    "bfloat16": r"""
__device__ __forceinline__ A widen(T x) { return __uint_as_float((unsigned)x << 16); }
__device__ __forceinline__ T narrow(A value) {
    const unsigned x = __float_as_uint(value);
    if ((x & 0x7FFFFFFFu) > 0x7F800000u) return (T)((x >> 16) | 64u);
    return (T)((x + 0x7FFFu + ((x >> 16) & 1u)) >> 16);
}
""",
}
_SAME = r"""
__device__ __forceinline__ A widen(T x) { return x; }
__device__ __forceinline__ T narrow(A x) { return x; }
"""


def knows(kind: str) -> bool:
    """Whether there are kernels for elements of a kind, by NumPy's name or "bfloat16"."""
    return kind in TYPES or kind in _CONVERT


def source(kind: str, op: int) -> str:
    """CUDA source: `T`, `A`, `widen`, `narrow` and `op`.

    Args:
        kind: of the elements.
        op: SUM, PROD, MIN or MAX of `psgd.kernels.reduce`.
    """
    types = _HALF if kind in _CONVERT else f"typedef {TYPES[kind]} T;\ntypedef T A;\n"
    reduce = f"__device__ __forceinline__ A op(A x, A y) {{ return (A)({FORMULAS[op]}); }}\n"
    return types + _CONVERT.get(kind, _SAME) + reduce
