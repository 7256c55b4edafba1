"""The exact sum of squares in GPU memory: `psgd.kernels.exact_squares`, bit for bit."""

import functools
from typing import Any

import cupy
import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.device.elementwise import OPTIONS, TYPES
from psgd.kernels.exact_squares import LIMBS, Limbs, digits

_BLOCKS, _THREADS = 1056, 256
_SOURCE = """
typedef unsigned long long u64;
struct Wide {  // of 192 bits
    u64 word[3];
    __device__ __forceinline__ void add(u64 low, u64 mid, u64 high) {
        asm("add.cc.u64 %0, %0, %3; addc.cc.u64 %1, %1, %4; addc.u64 %2, %2, %5;"
            : "+l"(word[0]), "+l"(word[1]), "+l"(word[2])
            : "l"(low), "l"(mid), "l"(high));
    }
};
__device__ __forceinline__ void place(u64* limbs, const Wide& wide, int position) {  // adds wide 2^position
    const int shift = position & 31;
    u64* limb = limbs + (position >> 5);
    u64 carry = 0;
#pragma unroll
    for (int k = 0; k < 6; ++k) {
        const u64 word = ((wide.word[k / 2] >> 32 * (k % 2) & 0xffffffff) << shift) + carry;
        if (word & 0xffffffff) atomicAdd(limb + k, word & 0xffffffff);
        carry = word >> 32;
    }
    if (carry) atomicAdd(limb + 6, carry);
}
// CuPy compiles with -ftz=true, which makes 0 of the smallest float32 where they become float64: their bits do not.
__device__ __forceinline__ double exact(float x) {
    const unsigned bits = __float_as_uint(x) & 0x7fffffff;
    return bits >> 23 ? (double)x : (double)bits * 0x1p-149;
}
__device__ __forceinline__ double exact(double x) { return x; }
// A thread adds up whole numbers in units of 2^base. What is below its base, 94 bits or more under the first one, goes
// to the block's digits at once; what is 120 bits above moves the base up. 2^13 numbers of 53 + 120 bits of 32 threads
// fit.
struct Sum {
    Wide wide;
    int base, count;
    __device__ __forceinline__ void add(double square, u64* limbs, unsigned& special) {
        const u64 bits = __double_as_longlong(square);
        if (bits == 0) return;
        const int exponent = (int)(bits >> 52);
        u64 mantissa = bits & 0xfffffffffffffULL;
        if (exponent == 2047) {
            special |= mantissa ? 2 : 1;
            return;
        }
        if (exponent) mantissa |= 1ULL << 52;
        const int position = (exponent ? exponent : 1) - 1;
        if (position - base > 120 || count == 8192) {
            place(limbs, wide, base < 0 ? 0 : base);
            wide = {{0, 0, 0}};
            count = 0;
            base = (position > 94 ? position - 94 : 0) & ~15;
        }
        const int shift = position - base;
        if (shift < 0) {
            place(limbs, {{mantissa, 0, 0}}, position);
            return;
        }
        const u64 low = mantissa << (shift & 63);
        const u64 high = shift & 63 ? mantissa >> (64 - (shift & 63)) : 0;
        const bool up = shift > 63;
        wide.add(up ? 0 : low, up ? low : high, up ? high : 0);
        ++count;
    }
};
extern "C" __global__ void squares(const T* values, u64* sums, const long long n) {
    __shared__ u64 limbs[LIMBS + 4];
    for (int k = threadIdx.x; k < LIMBS + 4; k += blockDim.x) limbs[k] = 0;
    __syncthreads();
    Sum sum = {{{0, 0, 0}}, -1000, 0};
    unsigned special = 0;
    const long long stride = gridDim.x * (long long)blockDim.x;
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    for (; i + 7 * stride < n; i += 8 * stride) {  // eight loads at once
        T x[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) x[k] = values[i + k * stride];
#pragma unroll
        for (int k = 0; k < 8; ++k) sum.add(exact(x[k]) * exact(x[k]), limbs, special);
    }
    for (; i < n; i += stride) sum.add(exact(values[i]) * exact(values[i]), limbs, special);
    bool open = sum.count > 0;
    while (__any_sync(~0u, open)) {  // threads of one base at a time
        const int base = __reduce_max_sync(~0u, open ? sum.base : -1000);
        const bool now = open && sum.base == base;
        Wide wide = now ? sum.wide : Wide{{0, 0, 0}};
        for (int lane = 16; lane; lane /= 2) {
            u64 other[3];
            for (int k = 0; k < 3; ++k) other[k] = __shfl_down_sync(~0u, wide.word[k], lane);
            wide.add(other[0], other[1], other[2]);
        }
        if (threadIdx.x % 32 == 0) place(limbs, wide, base);
        open = open && !now;
    }
    if (special) atomicOr(sums + LIMBS, (u64)special);
    __syncthreads();
    for (int k = threadIdx.x; k < LIMBS; k += blockDim.x)
        if (limbs[k]) atomicAdd(sums + k, limbs[k]);
}
"""


@functools.cache
def _squares(dtype: str, device: int) -> tuple[Any, Array]:
    source = f"typedef {TYPES[dtype]} T;\n{_SOURCE.replace('LIMBS', str(LIMBS))}"
    return cupy.RawKernel(source, "squares", options=OPTIONS), cupy.zeros(LIMBS + 1, np.uint64)


def squares(values: Array) -> Limbs:
    kernel, sums = _squares(values.dtype.name, cupy.cuda.runtime.getDevice())
    sums.data.memset_async(0, sums.nbytes)
    kernel((_BLOCKS,), (_THREADS,), (values, sums, np.int64(values.size)))
    *found, special = sums.tolist()
    total = sum(each << 32 * k for k, each in enumerate(found))
    words = np.frombuffer(total.to_bytes(4 * (LIMBS - 1), "little"), "<u4")
    return digits(words, special)
