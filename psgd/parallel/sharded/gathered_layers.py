"""Layers of one unit as one layer: it waits for their parameters before it computes, and lets them go after."""

from dataclasses import dataclass
from typing import Protocol

from psgd.kernels.array import Array
from psgd.nn import sequential
from psgd.nn.gates.recorded import Launcher, PythonPasses, recorded
from psgd.nn.layer import Arrays, Room


class Visited(Protocol):
    """What is told when a unit's turn begins and ends: `psgd.parallel.sharded.exchange.Exchange`."""

    def arrive(self, unit: int, backward: bool = False) -> None:
        """The unit's turn begins: blocks until it is there."""

    def leave(self, unit: int, backward: bool = False) -> None:
        """The unit's turn ends, backward with its gradient."""

    def used(self, unit: int) -> None:
        """Backward needs the unit's parameters no more."""


@dataclass(frozen=True)
class Gathered(sequential.SeveralAsOne[PythonPasses]):
    """The layers of a unit.

    Its gradients are final when `Stage` says so, which is behind `backward`: `psgd.parallel.sharded.by_unit`.

    Attributes:
        steps: the layers in their places.
        unit: its number.
        exchange: of the passes that it takes part in.
        launcher: makes CUDA graphs of the unit's passes in training; None: they are run by Python.
    """

    steps: tuple[sequential.Step, ...]
    unit: int
    exchange: Visited
    launcher: Launcher | None = None
    name = "gathered"

    @property
    def reads_output(self) -> bool:
        return self.steps[-1].layer.reads_output

    def allocate(self, room: Room) -> PythonPasses:
        inner = sequential.allocate_inside(self.steps, room)
        return recorded(inner, inner, room, self.launcher)

    def forward(self, state: PythonPasses, x: Array, params: Arrays) -> Array:
        self.exchange.arrive(self.unit)
        y = state.forward(x, params)
        self.exchange.leave(self.unit)
        return y

    def backward(self, state: PythonPasses, dy: Array, params: Arrays, grads: Arrays) -> Array:
        self.exchange.arrive(self.unit, backward=True)
        dx = state.backward(dy, params, grads)
        self.exchange.used(self.unit)
        return dx
