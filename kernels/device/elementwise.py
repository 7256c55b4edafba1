"""One pass over several arrays in GPU memory: a formula for one element, read and written 16 bytes at a time.

The formulas are compiled without contraction into fused multiply-adds, but for those that they write out as `fma`, so
that they give the bits of the host's loops.
"""

import functools
from typing import Any

import cupy
import numpy as np

from psgd.kernels.array import Array

TYPES = {"float32": "float", "float64": "double"}
OPTIONS = ("-std=c++17", "--fmad=false")
_THREADS = 256
_SOURCE = """
template <typename U, int W> struct alignas(sizeof(U) * W) Pack { U v[W]; };
PREAMBLE
__device__ __forceinline__ void one(ELEMENT) { BODY; }
extern "C" __global__ void NAME(ARGUMENTS, const long long n, const bool aligned) {
    constexpr int W = 16 / sizeof(T);
    const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    const long long stride = (long long)gridDim.x * blockDim.x;
    const long long packs = aligned ? n / W : 0;
    for (long long i = first; i < packs; i += stride) {
        LOAD
#pragma unroll
        for (int k = 0; k < W; ++k) one(LANE);
        STORE
    }
    for (long long i = packs * W + first; i < n; i += stride) one(SINGLE);
}
"""


class Elementwise:
    """A formula over arrays of one length.

    Args:
        name: of the kernel, for profilers.
        arrays: as in "inout params, in grad, out mean": read and written, read, written. The elements are `T`, the type
            of the first array, or what stands before the name, as in "in ushort values".
        scalars: names, all of type T.
        body: statements of C++ on one element of each.
        preamble: functions that the body needs.
    """

    def __init__(self, name: str, arrays: str, scalars: str, body: str, preamble: str = "") -> None:
        parts = [part.split() for part in arrays.split(",")]
        self._name, self._body, self._preamble = name, body, preamble
        self._arrays = [(words[0], words[1] if len(words) == 3 else "T", words[-1]) for words in parts]
        self._scalars = scalars.split()
        self._kernel = functools.cache(self._compile)

    def source(self, dtype: str) -> str:
        """The kernel's text for one dtype of T."""
        uses = {"in": "const {t}& {a}", "out": "{t}& {a}", "inout": "{t}& {a}"}
        element = [uses[use].format(t=t, a=a) for use, t, a in self._arrays]
        pointers = [f"{'const ' if use == 'in' else ''}{t}* __restrict__ {a}_" for use, t, a in self._arrays]
        scalars = [f"const T {a}" for a in self._scalars]
        load = " ".join(
            f"Pack<{t}, W> {a};" + ("" if use == "out" else f" {a} = ((const Pack<{t}, W>*){a}_)[i];")
            for use, t, a in self._arrays
        )
        store = " ".join(f"((Pack<{t}, W>*){a}_)[i] = {a};" for use, t, a in self._arrays if use != "in")
        text = {
            "PREAMBLE": self._preamble,
            "ELEMENT": ", ".join([*element, *scalars]),
            "BODY": self._body,
            "NAME": self._name,
            "ARGUMENTS": ", ".join([*pointers, *scalars]),
            "LOAD": load,
            "LANE": ", ".join([*(f"{a}.v[k]" for _, _, a in self._arrays), *self._scalars]),
            "STORE": store,
            "SINGLE": ", ".join([*(f"{a}_[i]" for _, _, a in self._arrays), *self._scalars]),
        }
        source = f"typedef {TYPES[dtype]} T;\ntypedef unsigned short ushort;\n{_SOURCE}"
        for word, replacement in text.items():
            source = source.replace(word, replacement)
        return source

    def _compile(self, dtype: str) -> Any:
        return cupy.RawKernel(self.source(dtype), self._name, options=OPTIONS)

    def __call__(self, arrays: tuple[Array, ...], scalars: tuple[float, ...] = ()) -> None:
        """Starts it on the current stream. The arrays are contiguous; only those of `out` may be written meanwhile."""
        first = arrays[0]
        n, kind = first.size, first.dtype.type
        kernel = self._kernel(first.dtype.name)
        if n == 0:
            kernel.compile()  # so that no step waits for it
            return
        width = 16 // first.dtype.itemsize
        aligned = all(a.data.ptr % (width * a.dtype.itemsize) == 0 for a in arrays)
        blocks = -(-n // (_THREADS * (width if aligned else 1)))
        kernel((blocks,), (_THREADS,), (*arrays, *map(kind, scalars), np.int64(n), np.bool_(aligned)))
