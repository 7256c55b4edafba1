"""The long short-term memory over a sequence (Hochreiter and Schmidhuber 1997; with forget gates, Gers et al. 2000)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from psgd.kernels.array import Array, array_module
from psgd.kernels.errors import UsageError
from psgd.kernels.layers.activation import add_bias
from psgd.kernels.layers.matmul import matmul, product_over_rows, sum_rows
from psgd.kernels.layers.recurrence import step_backward, step_forward
from psgd.nn import pytorch
from psgd.nn.initialize import Uniform
from psgd.nn.layer import Arrays, Layer, ParameterSpec, Room, Shape


@dataclass(frozen=True)
class OpenForgetGate:
    """The bias of an LSTM: 1 for the forget gate, so that it remembers at first, and 0 for the others."""

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Returns the four gates' biases. Draws nothing."""
        return np.repeat([0.0, 1.0, 0.0, 0.0], shape[0] // 4)


@dataclass
class LSTMState:
    """Buffers of one context, all but y and dx time-major: step t of all samples is contiguous.

    Attributes:
        x: the input, (steps, n, features).
        gates: their values, then the gradient of their sums, (steps, n, 4 units).
        cells, hidden: before the first step, which is 0, and after each, (steps + 1, n, units).
        recurrent: the gates' sums over h, (n, 4 units).
        dhidden, dcells: gradients of one step's h and c, (n, units).
        ones: that sum the bias's gradient on BLAS.
        y: (n, steps, units); None where the last h alone is the output.
        dx: None where it is not wanted.
        dx_by_step: the input's gradient, time-major; None likewise.
        n: samples of the backward pass whose weights' gradients are still to be computed.
    """

    x: Array
    gates: Array
    cells: Array
    hidden: Array
    recurrent: Array
    dhidden: Array
    dcells: Array
    ones: Array
    y: Array
    dx: Array
    dx_by_step: Array
    n: int = 0


@dataclass(frozen=True)
class LSTM(Layer[LSTMState]):
    """An LSTM over samples (steps, features); h and c are 0 before the first step.

    Its gates lie in PyTorch's order: input, forget, candidate, output. It has one bias where PyTorch adds two.

    Attributes:
        units: of h and c.
        sequence: the output is h after each step, (steps, units); else h after the last one, (units,).
    """

    units: int
    sequence: bool = False
    name = "lstm"
    reads_output = False  # backward needs h before each step, and the gates

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 2:
            raise UsageError(f"LSTM takes samples (steps, features), got samples of shape {shape}")
        if self.units < 1:
            raise UsageError(f"LSTM needs at least one unit, got {self.units}")
        return (shape[0], self.units) if self.sequence else (self.units,)

    def weights(self, shape: Shape) -> tuple[ParameterSpec, ...]:
        inputs, units, gates = shape[1], self.units, 4 * self.units
        return (
            ParameterSpec("input", (inputs, gates), Uniform(inputs, units, "xavier"), pytorch.linear(inputs, gates)),
            ParameterSpec("hidden", (units, gates), Uniform(units, units, "xavier"), pytorch.linear(units, gates)),
            ParameterSpec("bias", (gates,), OpenForgetGate()),
        )

    def allocate(self, room: Room) -> LSTMState:
        """Makes the activations of all steps, and what one step needs."""
        (steps, features), units = room.shape, self.units
        return LSTMState(
            x=room.empty(steps, features),
            gates=room.empty(steps, 4 * units),
            cells=room.empty(steps + 1, units),
            hidden=room.empty(steps + 1, units),
            recurrent=room.empty(4 * units),
            dhidden=room.empty(units),
            dcells=room.empty(units),
            ones=room.xp.ones(room.batch * steps, room.dtype),
            y=room.empty(steps, units) if self.sequence else None,
            dx=room.dx(),
            dx_by_step=room.dx(),
        )

    def forward(self, state: LSTMState, x: Array, params: Arrays) -> Array:
        weight, over_hidden, bias = params
        n, steps, _ = x.shape
        by_step, gates, cells, hidden = (_by_step(a, n) for a in (state.x, state.gates, state.cells, state.hidden))
        recurrent = state.recurrent[:n]
        by_step[...] = x.transpose(1, 0, 2)
        matmul(_rows(by_step), weight, _rows(gates))
        add_bias(_rows(gates), bias)
        cells[0].fill(0)
        hidden[0].fill(0)
        for t in range(steps):
            matmul(hidden[t], over_hidden, recurrent)
            step_forward(gates, recurrent, cells, hidden, t)
        if state.y is None:
            return hidden[steps]
        y = state.y[:n]
        y[...] = hidden[1:].transpose(1, 0, 2)
        return y

    def backward(self, state: LSTMState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        dx = self.backward_input(state, dy, params, grads)
        self.backward_weights(state, grads)
        return dx

    def late(self, shape: Shape) -> tuple[int, ...]:
        return (0, 1)

    def backward_input(self, state: LSTMState, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """Goes back through time; writes the bias's gradient, returns the input's."""
        (weight, over_hidden, _), (_, _, dbias) = params, grads
        n, xp = len(dy), array_module(dy)
        gates, cells = _by_step(state.gates, n), _by_step(state.cells, n)
        state.n = n
        dhidden, dcells = state.dhidden[:n], state.dcells[:n]
        steps = len(gates)
        dhidden[...] = dy[:, -1] if self.sequence else dy
        dcells.fill(0)
        for t in range(steps - 1, -1, -1):
            step_backward(gates, cells, dhidden, dcells, t)
            if t:
                matmul(gates[t], over_hidden.T, dhidden)
                if self.sequence:
                    xp.add(dhidden, dy[:, t - 1], out=dhidden)
        rows = _rows(gates)
        sum_rows(rows, state.ones, dbias)
        if state.dx is None:
            return None
        dx_by_step, dx = _by_step(state.dx_by_step, n), state.dx[:n]
        matmul(rows, weight.T, _rows(dx_by_step))
        dx[...] = dx_by_step.transpose(1, 0, 2)
        return dx

    def backward_weights(self, state: LSTMState, grads: Arrays) -> None:
        """Of each weight one product over all steps."""
        by_step, gates, hidden = (_by_step(a, state.n) for a in (state.x, state.gates, state.hidden))
        product_over_rows(_rows(by_step), _rows(gates), grads[0], 1)
        product_over_rows(_rows(hidden[:-1]), _rows(gates), grads[1], 1)


def _by_step(buffer: Array, n: int) -> Array:
    """The room of n samples in a buffer (batch, steps, width), as (steps, n, width)."""
    _, steps, width = buffer.shape
    return buffer[:n].reshape(steps, n, width)


def _rows(values: Array) -> Array:
    """All steps of all samples as the rows of a matrix: a view."""
    return values.reshape(-1, values.shape[-1])
