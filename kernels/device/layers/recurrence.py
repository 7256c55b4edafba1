"""One step in time of a long short-term memory in GPU memory. All arrays are C-contiguous."""

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.device.each import each

_SOURCE = r"""
__device__ __forceinline__ T squash(T x) { return (T)1 / ((T)1 + exp(-x)); }

// gates and recurrent: (n, 4 units); the others: (n, units)
extern "C" __global__ void step_forward(T* gates, const T* recurrent, const T* cells, T* next, T* hidden,
                                        long long n, int units) {
    const I k = INDEX;
    if (k >= n) return;
    const I at = k / units * 4 * units + k % units;
    const T i = squash(gates[at] + recurrent[at]);
    const T f = squash(gates[at + units] + recurrent[at + units]);
    const T g = tanh(gates[at + 2 * units] + recurrent[at + 2 * units]);
    const T o = squash(gates[at + 3 * units] + recurrent[at + 3 * units]);
    const T c = f * cells[k] + i * g;
    gates[at] = i;
    gates[at + units] = f;
    gates[at + 2 * units] = g;
    gates[at + 3 * units] = o;
    next[k] = c;
    hidden[k] = o * tanh(c);
}

extern "C" __global__ void step_backward(T* gates, const T* cells, const T* next, const T* dhidden, T* dcells,
                                         long long n, int units) {
    const I k = INDEX;
    if (k >= n) return;
    const I at = k / units * 4 * units + k % units;
    const T i = gates[at], f = gates[at + units], g = gates[at + 2 * units], o = gates[at + 3 * units];
    const T squashed = tanh(next[k]), dh = dhidden[k];
    const T dc = dcells[k] + dh * o * (1 - squashed * squashed);
    gates[at] = dc * g * i * (1 - i);
    gates[at + units] = dc * cells[k] * f * (1 - f);
    gates[at + 2 * units] = dc * i * (1 - g * g);
    gates[at + 3 * units] = dh * squashed * o * (1 - o);
    dcells[k] = dc * f;
}
"""


def step_forward(gates: Array, recurrent: Array, cells: Array, hidden: Array, t: int) -> None:
    _step("step_forward", gates[t], recurrent, cells[t], cells[t + 1], hidden[t + 1])


def step_backward(gates: Array, cells: Array, dhidden: Array, dcells: Array, t: int) -> None:
    _step("step_backward", gates[t], cells[t], cells[t + 1], dhidden, dcells)


def _step(name: str, gates: Array, *others: Array) -> None:
    n, units = gates.size // 4, gates.shape[-1] // 4
    each(_SOURCE, name, n, gates, gates, *others, np.int64(n), np.int32(units))
