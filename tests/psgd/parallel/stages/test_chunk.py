"""Stages with their links, two of them in one process: what is sent, kept alive, and freed."""

import numpy as np
import pytest

from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.parallel.microbatches import Batch
from psgd.parallel.schedules.instruction import Instruction
from psgd.parallel.stages.chunk import Chunk
from psgd.parallel.stages.links import Links
from psgd.parallel.stages.shared_slots import SharedInlet, SharedOutlet, Slots

N, SIZE = 7, 3


def pair():
    """Both halves of a model, bound, linked by slots in this process's memory."""
    model = Model((Linear(4, relu=True), Linear(6), Linear(3)), (5,), np.float64)
    stages = model.cut(0, 2), model.cut(2, 3)
    slots = [np.zeros(Slots.nbytes(3, SIZE, (6,), np.float64), np.uint8) for _ in range(2)]
    y, dy = (Slots(memory, 3, SIZE, (6,), np.float64) for memory in slots)
    front = Links(y=SharedOutlet(y), dy=SharedInlet(dy))
    behind = Links(x=SharedInlet(y), dx=SharedOutlet(dy))
    for stage in stages:
        stage.bind(stage.init(1), np.full(stage.layout.size, np.nan))
    return (
        Chunk(stages[0], front, SIZE, first=True, last=False),
        Chunk(stages[1], behind, SIZE, first=False, last=True),
    )


def send(outlet, message, total):
    assert outlet.send(message, total)


def batch():
    rng = np.random.default_rng(0)
    return Batch(N, SIZE, rng.standard_normal((N, 5)), rng.integers(0, 3, N))


def test_two_chunks_in_turn():
    (front, behind), told, samples = pair(), [], batch()
    front.begin(3, told.append)
    behind.begin(3, None)
    assert not behind.ready(Instruction("F", 0)) and front.ready(Instruction("F", 0))
    for k in range(3):
        front.run(Instruction("F", k), samples, send)
    assert front.alive == 3 and not front.ready(Instruction("B", 0))
    for k in range(3):
        assert behind.ready(Instruction("F", k))
        behind.run(Instruction("F", k), samples, send)
        behind.run(Instruction("B", k), samples, send)
        assert behind.alive == 0
        assert front.ready(Instruction("B", k))
        front.run(Instruction("B", k), samples, send)
        assert front.alive == 2 - k
        assert bool(told) == (k == 2)
    assert sorted(behind.losses) == [0, 1, 2] and not front.losses


def test_evaluation_keeps_nothing_alive():
    (front, behind), samples = pair(), batch()
    totals = np.zeros(2)
    for k in range(3):
        front.evaluate(k, samples, send)
        totals += behind.evaluate(k, samples, send)
    assert front.alive == behind.alive == 0
    model = Model((Linear(4, relu=True), Linear(6), Linear(3)), (5,), np.float64)
    model.bind(model.init(1))
    right, loss = model.evaluate(model.context(N), samples.x, samples.y)
    assert totals == pytest.approx([right, loss])


class Noted:
    """A stage whose passes are noted."""

    def __init__(self, stage, done):
        self._stage, self._done = stage, done

    def __getattr__(self, name):
        if name.startswith("backward"):
            self._done.append(name)
        return getattr(self._stage, name)


@pytest.mark.parametrize("early", [False, True])
def test_an_early_chunk_sends_before_it_computes_the_weights_gradients(early):
    (front, behind), samples, done = pair(), batch(), []
    stage, behind.stage, behind.early = behind.stage, Noted(behind.stage, done), early
    stage.bind(stage.init(1), found := np.full(stage.layout.size, np.nan))

    def sent(outlet, message, total):
        done.append("sent")
        send(outlet, message, total)

    for chunk in (front, behind):
        chunk.begin(3, None)
    for k in range(3):
        front.run(Instruction("F", k), samples, send)
        behind.run(Instruction("F", k), samples, send)
        behind.run(Instruction("B", k), samples, sent)
        assert behind.alive == 0 and front.ready(Instruction("B", k))
        front.run(Instruction("B", k), samples, send)
    assert done == (["backward_input", "sent", "backward_weights"] if early else ["backward", "sent"]) * 3
    whole = Model((Linear(4, relu=True), Linear(6), Linear(3)), (5,), np.float64)
    whole.bind(whole.init(1), grads := np.zeros(whole.layout.size))
    whole.gradient(whole.context(N), samples.x, samples.y)
    for name, view in stage.layout.views(found).items():
        assert np.allclose(view, whole.layout.views(grads)[name]), name
