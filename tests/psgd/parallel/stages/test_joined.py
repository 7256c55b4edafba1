"""Layouts in a row, and ranges that are passed on from the end to the start."""

import itertools

from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.parallel.stages.joined import InOrder, join


def test_joined_layouts_have_the_offsets_of_their_parts():
    model = Model((Linear(3), Linear(5), Linear(2), Linear(4)), (7,))
    parts = [model.cut(0, 1).layout, model.cut(2, 4).layout]
    layout, ranges = join(parts)
    assert layout.size == sum(part.size for part in parts) == ranges[-1].stop
    placed = {p.name: (p.offset, p.shape) for p in layout.parameters}
    for part, where in zip(parts, ranges, strict=True):
        assert len(where) == part.size
        for p in part.parameters:
            assert placed[p.name] == (where.start + p.offset, p.shape)
    assert dict(layout.torch) == {name: form for part in parts for name, form in part.torch}


def test_ranges_are_passed_on_in_order_whatever_theirs():
    parts = [range(0, 4), range(4, 6), range(6, 9), range(9, 16)]
    for order in itertools.permutations(parts):
        told = []
        gate = InOrder(16, told.append)
        for part in order:
            gate.shifted(part.start)(range(len(part)))
        assert told == parts[::-1]


def test_what_is_held_comes_with_its_release():
    parts = [range(0, 4), range(4, 6), range(6, 9), range(9, 16)]
    told = []
    gate = InOrder(16, told.append, held=[range(7, 8), range(0, 2)])
    for part in parts[::-1]:
        gate.ready(part)
    assert told == [parts[3]]
    gate.release()
    assert told == parts[::-1]
