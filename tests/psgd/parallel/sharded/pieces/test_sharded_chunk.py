"""Microbatches that are not there: their turns are taken, and nothing is computed or awaited."""

from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.parallel.schedules.instruction import Instruction
from psgd.parallel.sharded.pieces.sharded_chunk import ShardedChunk
from psgd.parallel.stages.links import Links


class Turns:
    def __init__(self):
        self.taken = []

    def arrive(self, unit, backward):
        self.taken.append((unit, backward))

    def leave(self, unit, backward):
        assert self.taken[-1] == (unit, backward)


def test_missing_microbatches_take_their_turns():
    chunk = ShardedChunk(Model([Linear(3)], (4,)), Links(), 2, first=True, last=True)
    chunk.exchange, chunk.units = Turns(), range(2, 4)
    chunk.begin(1, None)
    for kind in ("F", "X", "W", "B"):
        one = Instruction(kind, 1, 0)
        assert chunk.ready(one)
        chunk.run(one, None, None)
    assert chunk.evaluate(1, None, None) == (0.0, 0.0)
    forward, backward = [(2, False), (3, False)], [(3, True), (2, True)]
    assert chunk.exchange.taken == forward + backward + backward + forward
