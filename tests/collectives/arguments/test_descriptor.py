"""Words by which ranks find out whether they agree."""

import itertools

import numpy as np
import pytest
from mpi4py import MPI

from psgd.collectives.arguments import operations
from psgd.collectives.arguments.descriptor import CALLS, KINDS, agree, fill, fingerprint, signature
from psgd.collectives.shm import layout

SUM, MAX = operations.resolve(MPI.SUM), operations.resolve(MPI.MAX)


def made(sign=1, count=10, shape=(), mark=None):
    words = np.full(layout.DESCRIPTOR_WORDS, -7, np.int64)
    fill(words, sign, count, shape, fingerprint(shape) if mark is None else mark)
    return words


def test_every_part_of_a_signature_shows():
    calls = [(call, kind, op, root, number) for call in CALLS for kind in KINDS[:4] for op in (None, SUM, MAX)
             for root in (0, 5) for number in (0, 3)]  # fmt: skip
    assert len({signature(*each) for each in calls}) == len(calls)
    assert signature("Allreduce", "float32", SUM) == signature("Allreduce", "float32", SUM, 0, 0)


def test_a_flat_array_agrees_with_every_shape_and_shapes_with_their_own():
    assert fingerprint(()) == fingerprint((24,)) == 0
    shapes = [(24, 1), (1, 24), (4, 6), (6, 4), (2, 3, 4)]
    assert len({fingerprint(shape) for shape in shapes}) == len(shapes)
    for a, b in itertools.product([(24,), *shapes], repeat=2):
        assert agree(made(shape=a), made(shape=b)) == (a == b or len(a) == 1 or len(b) == 1)


@pytest.mark.parametrize("other", [{"sign": 2}, {"count": 11}])
def test_what_differs_does_not_agree(other):
    assert agree(made(), made()) and not agree(made(), made(**other))


def test_an_error_of_either_is_no_agreement():
    wrong = made()
    wrong[layout.ERROR] = 1
    assert not agree(wrong, made()) and not agree(made(), wrong)


def test_every_word_is_written_and_the_shape_is_shown_as_far_as_it_goes():
    words = made(shape=(2, 3, 4, 5, 6))
    assert not (words == -7).any()
    assert words[-5:].tolist() == [5, 2, 3, 4, 5]
    assert made(shape=(2, 3))[-5:].tolist() == [2, 2, 3, 0, 0]
