"""A layer that tells a gate when a pass comes to it and has left it."""

from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from psgd.kernels.array import Array
from psgd.nn.gates.recorded import Launcher, LayerPasses, PythonPasses, recorded
from psgd.nn.layer import Arrays, CutLoss, Layer, ParameterSpec, Room, Shape
from psgd.nn.stage import Stage

S = TypeVar("S", bound=Stage)


class Gate(Protocol):
    """Who is told."""

    def enter(self, index: int, backward: bool) -> None:
        """A pass comes to this layer: from now on it reads its parameters, and backward writes their gradient."""

    def leave(self, index: int, backward: bool) -> None:
        """The layer's work was started: nothing that comes later in this pass reads its parameters."""


@dataclass(frozen=True)
class Gated(Layer[PythonPasses]):
    """A layer as it is, between two calls of a gate.

    Attributes:
        inner: the layer.
        index: its place in the stage.
        gate: who is told.
        launcher: makes CUDA graphs of the layer's passes in training; None: they are run by Python.
    """

    inner: Layer[Any]
    index: int
    gate: Gate
    launcher: Launcher | None = None
    name = "gated"

    @property
    def reads_output(self) -> bool:
        return self.inner.reads_output

    @property
    def own_output(self) -> bool:
        return self.inner.own_output

    @property
    def loss(self) -> CutLoss | None:
        return self.inner.loss

    def output_shape(self, shape: Shape) -> Shape:
        return self.inner.output_shape(shape)

    def weights(self, shape: Shape) -> tuple[ParameterSpec, ...]:
        return self.inner.weights(shape)

    def allocate(self, room: Room) -> PythonPasses:
        state = self.inner.allocate(room)
        return recorded(LayerPasses(self.inner, state), state, room, self.launcher)

    def forward(self, state: PythonPasses, x: Array, params: Arrays) -> Array:
        self.gate.enter(self.index, backward=False)
        y = state.forward(x, params)
        self.gate.leave(self.index, backward=False)
        return y

    def backward(self, state: PythonPasses, dy: Array, params: Arrays, grads: Arrays) -> Array:
        self.gate.enter(self.index, backward=True)
        dx = state.backward(dy, params, grads)
        self.gate.leave(self.index, backward=True)
        return dx


def gated(stage: S, gate: Gate, launcher: Launcher | None = None) -> S:
    """Returns the same stage on no vector yet, all of whose layers tell the gate. It draws no first parameters.

    Args:
        stage: of any layers.
        gate: who is told.
        launcher: makes CUDA graphs of passes in training; None: none are made.
    """
    layers = (Gated(step.layer, i, gate, launcher) for i, step in enumerate(stage.steps))
    return stage.regrouped([replace(step, layer=layer) for step, layer in zip(stage.steps, layers, strict=True)])
