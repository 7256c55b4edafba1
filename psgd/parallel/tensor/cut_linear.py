"""A linear layer of which each rank computes a part: some of its columns, or some of its rows."""

import math
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, replace

from psgd.collectives import Communicator
from psgd.kernels.array import Array
from psgd.kernels.layers.activation import add_bias, bias_relu, bias_relu_backward
from psgd.kernels.layers.matmul import matmul, sum_rows
from psgd.nn.layer import Arrays, ParameterSpec, Room, Shape
from psgd.nn.linear import Linear
from psgd.parallel.tensor.convert import Conversion, conversion
from psgd.parallel.tensor.layouts import FEATURES, PARTIAL, REPLICATED, SplitAlong, TensorLayout, local_shape


@dataclass
class CutState:
    """Buffers of one context.

    Attributes:
        ones: to sum rows by.
        enter: from the input to what the product takes.
        leave: from the product to the output.
        enter_back: from the output's gradient to what the products of backward take.
        leave_back: from the product to the input's gradient; None where that is not wanted.
        product: where forward's product is written.
        dproduct: where backward's is; None where the input's gradient is not wanted.
        x: what the product took, as rows, which backward needs again.
        dy: the gradient by the product, as rows, which the second half of backward needs.
        y: what bias and ReLU left.
    """

    ones: Array
    enter: Conversion
    leave: Conversion
    enter_back: Conversion
    leave_back: Conversion | None
    product: Array
    dproduct: Array
    x: Array = None
    dy: Array = None
    y: Array = None


@dataclass(frozen=True)
class Lies:
    """How the arrays of a product lie.

    Attributes:
        takes: its input.
        dtakes: the gradient by that.
        gives: the product.
        dgives: the gradient by that.
    """

    takes: TensorLayout
    dtakes: TensorLayout
    gives: TensorLayout
    dgives: TensorLayout


@dataclass(frozen=True)
class CutLinear(Linear):
    """A linear layer whose product is cut over ranks.

    Attributes:
        comm: the ranks.
        inputs: of the whole layer, as `units` are.
        before: how the samples that it is given lie: replicated, or split by features.
        after: how its output lies.
    """

    _: KW_ONLY
    comm: Communicator
    inputs: int
    before: TensorLayout = REPLICATED
    after: TensorLayout = REPLICATED

    @property
    @abstractmethod
    def lies(self) -> "Lies":
        """How the product's arrays lie."""

    def output_shape(self, shape: Shape) -> Shape:
        """Returns what this rank has of a sample's output."""
        return self._local(self.after, super().output_shape(shape))

    def _local(self, layout: TensorLayout, shape: Shape) -> Shape:
        return local_shape(layout, shape, self.comm.rank, self.comm.size)

    def weights(self, shape: Shape) -> tuple[ParameterSpec, ...]:
        """Returns this rank's parts: of the bias, what its output needs."""
        weight, bias = super().weights((self.inputs,))
        units = self.lies.gives if isinstance(self.lies.gives, SplitAlong) else self.after
        if isinstance(self.lies.takes, SplitAlong):
            return self._part(weight, replace(self.lies.takes, axis=0)), self._part(bias, units)
        return self._part(weight, units), self._part(bias, units)

    def _part(self, spec: ParameterSpec, cut: TensorLayout) -> ParameterSpec:
        if not isinstance(cut, SplitAlong):
            return spec
        start = [0] * len(spec.shape)
        start[cut.axis] = cut.shares(spec.shape[cut.axis], self.comm.size)[self.comm.rank].start
        return replace(spec, shape=self._local(cut, spec.shape), part=(spec.shape, tuple(start)))

    def allocate(self, room: Room) -> CutState:  # type: ignore[override]  # a Linear's parameters, another state
        """Makes the buffers. Collective, as the ranks share those that they sum in."""
        tokens, lies = room.shape[:-1], self.lies
        inputs, outputs = (*tokens, self.inputs), (*tokens, self.units)

        def way(source: TensorLayout, target: TensorLayout, shape: Shape) -> Conversion:
            return conversion(self.comm, source, target, shape, room)

        enter, leave = way(self.before, lies.takes, inputs), way(lies.gives, self.after, outputs)
        enter_back = way(self.after, lies.dgives, outputs)
        leave_back = way(lies.dtakes, self.before, inputs) if room.wants_dx else None
        product, dproduct = leave.source, None if leave_back is None else leave_back.source
        if product is None:
            product = room.empty(*self._local(lies.gives, outputs))
        if leave_back is not None and dproduct is None:
            dproduct = room.empty(*self._local(lies.dtakes, inputs))
        ones = room.xp.ones(room.batch * math.prod(tokens), room.dtype)
        return CutState(ones, enter, leave, enter_back, leave_back, product, dproduct)

    def _multiply(self, state: CutState, x: Array, weight: Array) -> Array:
        """Returns this rank's product of all that the ranks have, before bias and ReLU."""
        state.x = _rows(state.enter(x))
        product = state.product[: len(x)]
        matmul(state.x, weight, _rows(product))
        return product

    def _activate(self, state: CutState, y: Array, bias: Array) -> None:
        """Adds the bias and rectifies, in place."""
        (bias_relu if self.relu else add_bias)(_rows(y), bias)
        state.y = y

    def _activate_back(self, state: CutState, dy: Array, dbias: Array) -> None:
        """Turns the output's gradient into that before ReLU, in place, and writes the bias's."""
        if self.relu:
            bias_relu_backward(_rows(state.y), _rows(dy), dbias)
        else:
            sum_rows(_rows(dy), state.ones, dbias)

    def _multiply_back(self, state: CutState, dy: Array, weight: Array) -> Array:
        """Returns the input's gradient."""
        n = len(dy)
        state.dy, state.y = _rows(dy), None
        if state.leave_back is None:
            return None
        dx = state.dproduct[:n]
        matmul(state.dy, weight.T, _rows(dx))
        return state.leave_back(dx)


@dataclass(frozen=True)
class ColumnLinear(CutLinear):
    """Each rank has some of the units: a range of the weight's columns, and of the bias.

    It takes the whole input and gives some features of the output. The input's gradients are summands.
    """

    @property
    def lies(self) -> Lies:
        units = self.after if isinstance(self.after, SplitAlong) else FEATURES
        return Lies(REPLICATED, PARTIAL, units, units)

    @property
    def reads_output(self) -> bool:
        return self.relu and self.after != REPLICATED  # else it is a copy

    def forward(self, state: CutState, x: Array, params: Arrays) -> Array:  # type: ignore[override]
        weight, bias = params
        y = self._multiply(state, x, weight)
        self._activate(state, y, bias)
        return state.leave(y)

    def backward_input(  # type: ignore[override]
        self, state: CutState, dy: Array, params: Arrays, grads: Arrays
    ) -> Array:
        dy = state.enter_back(dy)
        self._activate_back(state, dy, grads[1])
        return self._multiply_back(state, dy, params[0])


@dataclass(frozen=True)
class RowLinear(CutLinear):
    """Each rank has some of the inputs: a range of the weight's rows.

    It takes some features of the input. The products are summands; the bias is added once, to their sum. Where the
    output is replicated, so is the bias, and all ranks have its gradient with the same bits.
    """

    @property
    def lies(self) -> Lies:
        inputs = self.before if isinstance(self.before, SplitAlong) else FEATURES
        return Lies(inputs, inputs, PARTIAL, REPLICATED)

    def forward(self, state: CutState, x: Array, params: Arrays) -> Array:  # type: ignore[override]
        weight, bias = params
        y = state.leave(self._multiply(state, x, weight))
        self._activate(state, y, bias)
        return y

    def backward_input(  # type: ignore[override]
        self, state: CutState, dy: Array, params: Arrays, grads: Arrays
    ) -> Array:
        self._activate_back(state, dy, grads[1])
        return self._multiply_back(state, state.enter_back(dy), params[0])


def _rows(x: Array) -> Array:
    """Samples, or their tokens, as the rows of a matrix: a view."""
    return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
