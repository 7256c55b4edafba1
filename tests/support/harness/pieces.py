"""Runs of a made-up model in pieces: its gradient is by element, so that no cut changes it."""

import functools
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import psgd
from harness import simulation
from psgd.checkpoint.pieces.model_part import ModelPart
from psgd.nn.layout import Layout

SHAPES = [("a.weight", (5, 7)), ("a.bias", (7,)), ("b.weight", (7, 3)), ("b.bias", (3,)), ("c.gain", (4,))]
CUT_ALONG = {"a.weight": 1, "a.bias": 0, "b.weight": 0}
"""By tensor: columns, then rows. All others are alike on all tensor ranks."""
STAGES = {1: [5], 2: [2, 5], 4: [1, 2, 4, 5]}
WHOLE = Layout(SHAPES)
SAMPLES = 3


def edges(extent: int, ranks: int) -> list[int]:
    return [extent * each // ranks for each in range(ranks + 1)]


def layout_of(pipe: int, tensor: int, stage: int, place: int) -> Layout:
    """What the rank at this place has of the model."""
    first, last = ([0, *STAGES[pipe]][stage], STAGES[pipe][stage])
    shapes, parts = [], {}
    for name, shape in SHAPES[first:last]:
        own, start = list(shape), [0] * len(shape)
        if name in CUT_ALONG:
            axis = CUT_ALONG[name]
            cut = edges(shape[axis], tensor)
            start[axis], own[axis] = cut[place], cut[place + 1] - cut[place]
            parts[name] = (shape, start)
        shapes.append((name, own))
    return Layout(shapes, parts=parts)


def first_values(name: str) -> NDArray[np.float32]:
    shape = dict(SHAPES)[name]
    return np.cos(np.arange(np.prod(shape)) + len(name)).reshape(shape).astype(np.float32)


def gradient_of(name: str, value: NDArray[Any], worker: int, clock: int, slices: Any = ...) -> NDArray[Any]:
    """By element, of which each has a number in the whole parameter."""
    shape = dict(SHAPES)[name]
    ramp = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)[slices] / np.float32(7)
    return (value * np.float32(0.25) + np.sin(ramp * (worker + 1) + clock)).astype(np.float32)


def whole_gradient(w: NDArray[Any], worker: int, clock: int) -> NDArray[Any]:
    grads = np.zeros_like(w)
    for name, view in WHOLE.views(grads).items():
        view[...] = gradient_of(name, WHOLE.views(w)[name], worker, clock)
    return grads


def expected(rule: str, workers: int, steps: int, clip: float) -> dict[str, Any]:
    """Every parameter as one process that sums alike has it. A single worker's gradient is its own mean."""
    start = np.zeros(WHOLE.size, np.float32)
    for name, view in WHOLE.views(start).items():
        view[...] = first_values(name)
    made = simulation.Rule(rule, start)
    w, _, _ = simulation.synchronous(
        start,
        workers,
        made,
        lambda samples: 0.05,
        lambda worker: steps,
        lambda worker, clock: SAMPLES,
        whole_gradient,
        clip=clip,
        served=True,
    )
    return WHOLE.views(w)


class Run:
    """One rank's part of a run. Creating is collective over `comm`.

    Args:
        comm: pipe x tensor x the ranks of each piece.
        pipe, tensor: ranks along these axes.
        steps: of each worker.
        options: of `psgd.connect`.

    Attributes:
        part: of the model.
        params: in the end, by name.
        connection: as it was.
    """

    def __init__(self, comm: MPI.Intracomm, pipe: int, tensor: int, steps: int, **options: Any) -> None:
        stage, place = comm.rank // tensor % pipe, comm.rank % tensor
        data, replica = (
            comm.Split(stage * tensor + place, comm.rank),
            comm.Split(comm.rank // (pipe * tensor), comm.rank),
        )
        layout = layout_of(pipe, tensor, stage, place)
        place_of = {"pipe": stage, "tensor": place}
        self.part = ModelPart(comm, replica, coordinates=place_of, layout=layout, whole=WHOLE)
        vector = np.zeros(layout.size, np.float32)
        views = layout.views(vector)
        slices = {parameter.name: parameter.slices for parameter in layout.parameters}
        for name, view in views.items():
            view[...] = first_values(name)[slices[name]]
        self.began = 0
        with psgd.connect(data, vector, part=self.part, lr=lambda samples: 0.05, **options) as ps:
            self.connection = ps
            self.began = ps.clock
            for clock in range(ps.clock, steps):
                if ps.stop:
                    break
                grads = layout.views(ps.grads)
                ps.grads[:] = 0
                for name, view in layout.views(ps.params).items():
                    grads[name][...] = gradient_of(name, view, ps.worker, clock, slices[name])
                self.before_step(ps, clock)
                ps.step(SAMPLES, 1.0)
        self.params = {name: view.copy() for name, view in views.items()}
        self.wanted = functools.partial(self._slice, slices)
        comm.Barrier()  # rank 0 has published what there is
        replica.Free()
        data.Free()

    def before_step(self, ps: Any, clock: int) -> None:
        """For those who ask for something."""

    def _slice(self, slices: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
        return {name: whole[name][slices[name]] for name in self.params}

    def check(self, whole: dict[str, Any]) -> None:
        """Asserts that this rank has the bits of its part of `whole`."""
        for name, value in self.wanted(whole).items():
            np.testing.assert_array_equal(self.params[name], value, err_msg=name)
