"""One step in time of a long short-term memory (LSTM), forward and backward, between two matrix products.

Arrays are time-major, so that each step's part is contiguous: (steps, samples, units). Of gates the four parts lie one
after another along the last axis, in PyTorch's order: input, forget, candidate, output.
"""

import math

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.by_device import by_device
from psgd.kernels.jit import lazy_kernel


@by_device
@lazy_kernel
def step_forward(gates: Array, recurrent: Array, cells: Array, hidden: Array, t: int) -> None:
    """Takes step t: c' = f c + i g and h' = o tanh(c').

    Args:
        gates: (steps, n, 4 units), float32 or float64, C-contiguous as all; in row t the gates' sums over the input and
            their bias, overwritten with the gates' values.
        recurrent: (n, 4 units), their sums over h.
        cells: (steps + 1, n, units); row t is read, row t + 1 written.
        hidden: as `cells`; row t + 1 is written.
        t: 0 to steps - 1.
    """
    one = gates.dtype.type(1)
    units = cells.shape[2]
    for r in range(cells.shape[1]):
        for j in range(units):
            i = one / (one + np.exp(-(gates[t, r, j] + recurrent[r, j])))
            f = one / (one + np.exp(-(gates[t, r, units + j] + recurrent[r, units + j])))
            g = math.tanh(gates[t, r, 2 * units + j] + recurrent[r, 2 * units + j])
            o = one / (one + np.exp(-(gates[t, r, 3 * units + j] + recurrent[r, 3 * units + j])))
            c = f * cells[t, r, j] + i * g
            gates[t, r, j] = i
            gates[t, r, units + j] = f
            gates[t, r, 2 * units + j] = g
            gates[t, r, 3 * units + j] = o
            cells[t + 1, r, j] = c
            hidden[t + 1, r, j] = o * math.tanh(c)


@by_device
@lazy_kernel
def step_backward(gates: Array, cells: Array, dhidden: Array, dcells: Array, t: int) -> None:
    """Takes back step t: from the gradients of h' and c' to those of the gates' sums and of c.

    Args:
        gates: as `step_forward` has left them; row t is overwritten with the gradient of the gates' sums.
        cells: as there.
        dhidden: (n, units), the whole gradient of h'.
        dcells: (n, units), the gradient of c' by later steps; overwritten with that of c.
        t: 0 to steps - 1.
    """
    one = gates.dtype.type(1)
    units = cells.shape[2]
    for r in range(cells.shape[1]):
        for j in range(units):
            i, f = gates[t, r, j], gates[t, r, units + j]
            g, o = gates[t, r, 2 * units + j], gates[t, r, 3 * units + j]
            squashed = math.tanh(cells[t + 1, r, j])
            dh = dhidden[r, j]
            dc = dcells[r, j] + dh * o * (one - squashed * squashed)
            gates[t, r, j] = dc * g * i * (one - i)
            gates[t, r, units + j] = dc * cells[t, r, j] * f * (one - f)
            gates[t, r, 2 * units + j] = dc * i * (one - g * g)
            gates[t, r, 3 * units + j] = dh * squashed * o * (one - o)
            dcells[r, j] = dc * f
