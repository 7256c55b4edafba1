"""psgd's layers run by unit: a unit's parameters and gradients are there while it is computed, in pooled memory.

All is bound once: a parameter's place is its unit's buffer, whatever lies there at the moment.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from psgd.kernels.array import Array, array_module
from psgd.nn import sequential
from psgd.nn.gates.recorded import Launcher
from psgd.nn.layout import Layout
from psgd.nn.stage import OnReady, Stage
from psgd.parallel.sharded import units
from psgd.parallel.sharded.exchange import Exchange
from psgd.parallel.sharded.gathered_layers import Gathered, Visited
from psgd.parallel.sharded.slices import Slices

S = TypeVar("S", bound=Stage)


class Units(Visited, Protocol):
    """Where units are, and who is told of their turns: an `Exchange`, or a part of one.

    Attributes:
        slices: of the vector whose units they are.
        params: an array where they are.
        parameters, gradients: for each unit its place.
    """

    slices: Slices
    params: Array
    parameters: tuple[Array, ...]
    gradients: tuple[Array, ...]


def by_unit(stage: S, exchange: Units, graphs: bool = False) -> S:
    """Returns the same layers, bound to an exchange's buffers: no `bind` follows.

    Each pass is to be announced by `exchange.begin`, and backward needs `on_ready(exchange)`.

    Args:
        stage: whose units, of `units.of_stage`, the exchange has; with or without recomputation.
        exchange: of stage 2 or 3.
        graphs: on a GPU each unit's passes in training become CUDA graphs, unless `PSGD_CUDA_GRAPHS=0`. Not where whole
            passes are recorded.
    """
    xp = array_module(exchange.params)
    launcher = _launcher() if graphs and xp is not np else None
    groups = units.grouped([len(each) for each in stage.ready_ranges], stage.dtype.itemsize)
    several = [stage.steps[group.start : group.stop] for group in groups]
    steps = [_merged(each, Gathered(tuple(each), unit, exchange, launcher)) for unit, each in enumerate(several)]
    made = stage.regrouped(steps)
    gaps = [(gap.start, _in(exchange, exchange.gradients, gap)) for gap in made.layout.padding]
    params, grads = (views(made.layout, exchange, each) for each in (exchange.parameters, exchange.gradients))
    made.bind_views(xp, params, grads, gaps)
    return made


def on_ready(exchange: Exchange) -> OnReady:
    """What tells the exchange that a unit's gradient is final: for `backward` of what `by_unit` returned."""
    assert exchange.ready is not None
    return exchange.ready


def shared_units(stage: Stage, ranges: Sequence[range]) -> list[list[int]]:
    """For each unit of a stage the units elsewhere whose parameters it uses too, under another name."""
    groups = units.grouped([len(each) for each in stage.ready_ranges], stage.dtype.itemsize)
    places = {p.name: p.offset for p in stage.layout.parameters}
    names = dict(stage.layout.tied)
    found: list[list[int]] = []
    for unit, group in enumerate(groups):
        specs = (spec for step in stage.steps[group.start : group.stop] for spec in step.specs)
        offsets = {places[names[spec.name]] for spec in specs if spec.name in names}
        found.append(sorted({_unit_of(ranges, offset) for offset in offsets} - {unit}))
    return found


def views(layout: Layout, exchange: Units, buffers: Sequence[Array]) -> dict[str, Array]:
    """Each parameter, by every name, in its unit's buffer."""
    found = {p.name: _in(exchange, buffers, range(p.offset, p.stop)).reshape(p.shape) for p in layout.parameters}
    return found | {name: found[same] for name, same in layout.tied}


def first_own(stage: Stage, slices: Slices, seed: int) -> npt.NDArray[Any]:
    """A rank's own part of what `stage.init` returns, on the host: drawn one parameter at a time."""
    own = np.zeros(slices.size, stage.dtype)
    fill_own(own, stage, slices, seed)
    return own


def fill_own(own: npt.NDArray[Any], stage: Stage, slices: Slices, seed: int, first: int = 0) -> None:
    """Writes a rank's own part of a stage's first values to its vector.

    Args:
        own: (slices.size,), on the host.
        stage: whose parameters begin at `first` in the whole vector.
        slices: of the rank.
        seed: of the values.
        first: see `stage`.
    """
    places = {p.name: range(first + p.offset, first + p.stop) for p in stage.layout.parameters}
    for name, values in stage.first_values(seed):
        place = places[name]
        mine = slices.within(place)
        if mine:
            begin = slices.own[_unit_of(slices.units, place.start)].start
            start = max(begin, place.start) - place.start
            own[mine.start : mine.stop] = values.reshape(-1)[start : start + len(mine)]


def _merged(steps: Sequence[sequential.Step], layer: Gathered) -> sequential.Step:
    specs = tuple(spec for step in steps for spec in step.specs)
    return sequential.Step(layer, "", steps[0].shape, specs, steps[0].index)


def _launcher() -> Launcher | None:
    from psgd.kernels.device import graphs  # imports CuPy

    return graphs.launcher()


def _in(exchange: Units, buffers: Sequence[Array], part: range) -> Array:
    """A range of the whole vector in its unit's buffer."""
    unit = _unit_of(exchange.slices.units, part.start)
    start = exchange.slices.units[unit].start
    return buffers[unit][part.start - start : part.stop - start]


def _unit_of(ranges: Sequence[range], offset: int) -> int:
    return next(number for number, each in enumerate(ranges) if offset in each)
