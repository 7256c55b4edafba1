"""Layers in sequence: shapes that fit, names of their parameters, first values by place."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from psgd.kernels.array import Array, array_module
from psgd.kernels.errors import UsageError
from psgd.nn import pytorch
from psgd.nn.buffers import forward_only
from psgd.nn.conv2d import Conv2D
from psgd.nn.initialize import Uniform
from psgd.nn.layer import Arrays, CutLoss, Layer, ParameterSpec, Room, Shape, State
from psgd.nn.linear import Linear
from psgd.nn.relu import ReLU
from psgd.nn.reshape import ChannelsLast, Flatten


@dataclass(frozen=True)
class Step:
    """One layer in its place.

    Attributes:
        layer: as given.
        name: of the layer, with its number among those of its kind.
        shape: of one input sample.
        specs: its parameters, "name.weight" and so on.
        index: of the layer in the whole list.
    """

    layer: Layer[Any]
    name: str
    shape: Shape
    specs: tuple[ParameterSpec, ...]
    index: int


def fit(layers: Iterable[Layer[Any]], shape: Shape) -> tuple[list[Step], Shape]:
    """Returns each layer in its place for samples of `shape`, and the last one's output shape.

    Raises:
        UsageError: shapes that do not fit.
    """
    layers = tuple(layers)
    steps: list[Step] = []
    counts: dict[str, int] = {}
    channels_last = False
    image: Shape = ()  # the image that was flattened, whose elements the next layer's inputs are
    for layer in layers:
        output = layer.output_shape(shape)
        counts[layer.name] = counts.get(layer.name, 0) + 1
        name = f"{layer.name}{counts[layer.name]}"
        specs = tuple(replace(spec, name=f"{name}.{spec.name}") for spec in layer.weights(shape))
        channels_last = channels_last or isinstance(layer, (ChannelsLast, Conv2D))
        if isinstance(layer, Flatten) and channels_last and len(shape) == 3:
            image = shape
        elif isinstance(layer, Linear) and image:
            specs = (replace(specs[0], torch=pytorch.linear_behind_image(image, layer.units)), *specs[1:])
        image = () if specs else image
        steps.append(Step(layer, name, shape, specs, len(steps)))
        shape = output
    return [replace(step, specs=_by_place(steps, i)) for i, step in enumerate(steps)], shape


def _by_place(steps: Sequence[Step], index: int) -> tuple[ParameterSpec, ...]:
    """Fills in initializations left open: he if a ReLU comes before the next layer with parameters, else xavier."""
    following = next((s for s in steps[index + 1 :] if s.specs or isinstance(s.layer, ReLU)), None)
    init: Any = "he" if following is not None and isinstance(following.layer, ReLU) else "xavier"
    return tuple(
        replace(spec, initializer=replace(spec.initializer, init=init))
        if isinstance(spec.initializer, Uniform) and spec.initializer.init is None
        else spec
        for spec in steps[index].specs
    )


def first_with_parameters(steps: Sequence[Step]) -> int:
    """Returns where backward may end when the input's gradient is not wanted."""
    return next((i for i, step in enumerate(steps) if step.specs), len(steps))


def allocate(steps: Sequence[Step], room: Room) -> list[Any]:
    """Makes each layer's state, for an input and a wish for its gradient as `room` has them."""
    first = first_with_parameters(steps)
    within = f"{room.name}." if room.name else ""
    states = []
    for index, step in enumerate(steps):
        wants_dx = room.trains and (room.wants_dx or index > first)
        mine = replace(room, shape=step.shape, wants_dx=wants_dx, name=within + step.name)
        states.append(step.layer.allocate(mine) if room.trains else forward_only.allocate(step.layer, mine))
    return states


@dataclass(eq=False)
class Inner:
    """The states of layers that are inside of one, in one context.

    Attributes:
        forwards: for each layer: itself, its state, where its parameters are among all.
        backwards: those of them that backward needs, last first.
    """

    forwards: list[tuple[Layer[Any], Any, slice]]
    backwards: list[tuple[Layer[Any], Any, slice]]

    def forward(self, x: Array, params: Arrays) -> Array:
        """Returns the last layer's output."""
        for layer, state, mine in self.forwards:
            x = layer.forward(state, x, params[mine])
        return x

    def backward(self, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """Overwrites `grads`, and returns the input's gradient, None where it is not wanted."""
        for layer, state, mine in self.backwards:
            dy = layer.backward(state, dy, params[mine], grads[mine])
        return dy


def allocate_inside(steps: Sequence[Step], room: Room) -> Inner:
    """As `allocate`, for layers that are inside of one."""
    forwards: list[tuple[Layer[Any], Any, slice]] = []
    start = 0
    for step, state in zip(steps, allocate(steps, room), strict=True):
        stop = start + len(step.specs)
        forwards.append((step.layer, state, slice(start, stop)))
        start = stop
    first = 0 if room.wants_dx else first_with_parameters(steps)
    return Inner(forwards, forwards[first:][::-1])


class SeveralAsOne(Layer[State]):
    """Consecutive layers of a model, which keep their places in it: names, first values, random numbers.

    Attributes:
        steps: the layers in their places.
    """

    steps: tuple[Step, ...]

    @property
    def loss(self) -> CutLoss | None:
        return self.steps[-1].layer.loss

    def output_shape(self, shape: Shape) -> Shape:
        for step in self.steps:
            shape = step.layer.output_shape(shape)
        return shape

    def weights(self, shape: Shape) -> tuple[ParameterSpec, ...]:
        return tuple(spec for step in self.steps for spec in step.specs)


def check_ties(steps: Sequence[Step]) -> dict[str, Step]:
    """Returns, for each parameter that others are tied to, the layer that has it.

    Raises:
        UsageError: a tie to a parameter that no earlier layer has, or one of another shape.
    """
    owners: dict[str, Step] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    found: dict[str, Step] = {}
    for step in steps:
        for spec in step.specs:
            if spec.tied is None:
                continue
            if spec.tied not in owners:
                known = ", ".join(owners) or "none"
                raise UsageError(
                    f"{spec.name}: expected to be tied to a parameter of an earlier layer, got {spec.tied}; "
                    f"there are: {known}"
                )
            if spec.shape != shapes[spec.tied]:
                raise UsageError(
                    f"{spec.name}: expected the shape {shapes[spec.tied]} of {spec.tied}, which it is tied to, "
                    f"got {spec.shape}"
                )
            found[spec.tied] = owners[spec.tied]
        for spec in step.specs:
            if spec.tied is None:
                owners[spec.name], shapes[spec.name] = step, spec.shape
    return found


def tied_places(steps: Sequence[Step]) -> dict[str, str]:
    """Returns the names that need no place of their own, each with the parameter that has it.

    Of several names of one parameter the first among these layers has the place, whichever layer that is.
    """
    first: dict[str, str] = {}
    tied: dict[str, str] = {}
    for step in steps:
        for spec in step.specs:
            place = first.setdefault(spec.tied or spec.name, spec.name)
            if place != spec.name:
                tied[spec.name] = place
    return tied


def draw_one(step: Step, rng: np.random.Generator, name: str) -> Array:
    """Returns the first values of one parameter of a layer, with what the others draw before it left out."""
    for spec in step.specs:
        values = spec.draw(rng) if spec.tied is None else None
        if spec.name == name:
            break
    return values


class SharedGradients:
    """The gradients of parameters with several names: made apart, and added where the place is, in layer order.

    Args:
        steps: of one stage.
        tied: as `tied_places` gives it.
        dtype: of gradients.
    """

    def __init__(self, steps: Sequence[Step], tied: dict[str, str], dtype: np.dtype[Any]) -> None:
        where = {spec.name: (i, j) for i, step in enumerate(steps) for j, spec in enumerate(step.specs)}
        self._apart = {where[name]: (steps[where[name][0]].specs[where[name][1]].shape) for name in tied}
        self._joined: dict[int, list[tuple[int, tuple[int, int]]]] = {}
        for name, place in tied.items():
            index, position = where[place]
            self._joined.setdefault(index, []).append((position, where[name]))
        self._dtype = dtype
        self._buffers: dict[tuple[int, int], Array] = {}
        self._xp: Any = None

    def apart(self, grads: list[Arrays], xp: Any) -> list[Arrays]:
        """Returns the gradients by layer, with buffers of their own for names that have no place. Made once."""
        if not self._apart:
            return grads
        if xp is not self._xp:
            self._xp = xp
            self._buffers = {where: xp.empty(shape, self._dtype) for where, shape in self._apart.items()}
        return [
            tuple(self._buffers.get((i, j), array) for j, array in enumerate(arrays)) for i, arrays in enumerate(grads)
        ]

    def join(self, index: int, grads: Arrays) -> None:
        """Adds to a layer's gradients, just made, what later layers have for the same parameters."""
        for position, where in self._joined.get(index, ()):
            total = grads[position]
            array_module(total).add(total, self._buffers[where], out=total)
