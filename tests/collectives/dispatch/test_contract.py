"""Descriptors that ranks compare: packed, told apart, put into words, and the error where they differ."""

import itertools

import numpy as np
import pytest
from mpi4py import MPI

from psgd.collectives.algorithms import catalog
from psgd.collectives.arguments import descriptor, operations
from psgd.collectives.arguments.view import BFLOAT16, KINDS
from psgd.collectives.dispatch import contract
from psgd.collectives.mpi.agreement import name_ranks
from psgd.collectives.shm import layout
from psgd.kernels.errors import AgreedContractError, AgreedError, AgreedUsageError, ContractError, UsageError


def line(call="Allreduce", kind="float32", op=operations.SUM_, root=0, algorithm="?", count=100, shape=(), tells=None):
    words = np.full(layout.DESCRIPTOR_WORDS, 77, np.int64)
    tells = descriptor.fingerprint(shape) if tells is None else tells
    number = 0 if algorithm == "?" else catalog.number(algorithm)
    descriptor.fill(words, descriptor.signature(call, kind, op, root, number), count, shape, tells)
    return words


def test_signatures_are_all_different():
    """Whatever the combination: no field runs into its neighbour."""
    ops = (None, *operations.ALL, operations.resolve(MPI.BOR), operations.resolve(MPI.NO_OP))
    roots = (0, 1, 255, 256, 65535, 2**20, 2**31 - 1)
    everything = itertools.product(descriptor.CALLS, descriptor.KINDS, ops, roots, range(1 + len(catalog.ALGORITHMS)))
    signs = [descriptor.signature(call, kind, op, root, number) for call, kind, op, root, number in everything]
    assert len(set(signs)) == len(signs)
    assert min(signs) >= 0 and max(signs) < 2**63


def test_every_kind_and_every_collective_has_a_number():

    assert set(descriptor.KINDS) == {"?", BFLOAT16, *KINDS.values()}
    verbs = itertools.chain(*(each.verbs for each in catalog.ALGORITHMS.values()))
    assert set(descriptor.CALLS) == {"?", "Barrier", "empty", "free", *verbs}


def test_fingerprints():
    assert descriptor.fingerprint(()) == descriptor.fingerprint((24,)) == 0
    shapes = [
        (4, 6),
        (6, 4),
        (24, 1),
        (1, 24),
        (2, 12),
        (2, 3, 4),
        (4, 3, 2),
        (0, 5),
        (5, 0),
        (1, 2, 3, 4, 1),
        (2**40, 1),
    ]
    marks = [descriptor.fingerprint(shape) for shape in shapes]
    assert len(set(marks)) == len(marks) and all(0 < mark <= 2**32 for mark in marks)
    assert descriptor.fingerprint(np.array([4, 6])) == descriptor.fingerprint([4, 6]) == descriptor.fingerprint((4, 6))


def test_fill_leaves_nothing_of_the_last_call():
    words = line(count=24, shape=(2, 3, 4))
    assert (words != 77).all()
    assert words[layout.COUNT] == 24 and words[layout.ERROR] == 0
    assert words[layout.SEND_ID] == words[layout.RECEIVE_ID] == -1
    assert words[layout.DIMENSIONS :].tolist()[:5] == [3, 2, 3, 4, 0]
    assert line(shape=(1, 2, 3, 4, 5, 6))[layout.DIMENSIONS :].tolist()[:5] == [6, 1, 2, 3, 4]


DESCRIBED = [
    (line(count=100_000), "Allreduce(float32, 100000 elements, SUM)"),
    (line(count=100_000, shape=(100_000,)), "Allreduce(float32, 100000 elements, SUM)"),
    (line(op=operations.MEAN_, kind="bfloat16", count=12, shape=(3, 4)), "Allreduce(bfloat16, shape (3, 4), mean)"),
    (line("Bcast", "int8", None, 3, count=5), "Bcast(int8, 5 elements, root 3)"),
    (line("Reduce", "int8", operations.MAX_, 2**20, count=0), "Reduce(int8, 0 elements, MAX, root 1048576)"),
    (line("Reduce", root=1, algorithm="binomial"), "Reduce(float32, 100 elements, SUM, root 1, algorithm binomial)"),
    (line("Allgather", "bool", None, count=2**33), "Allgather(bool, 8589934592 elements)"),
    (line("Allreduce", "int64", operations.resolve(MPI.BXOR), count=1), "Allreduce(int64, 1 elements, BXOR)"),
    (line("Barrier", "?", None, count=0), "Barrier()"),
    (line("?", "?", None, count=0), "?()"),
]


@pytest.mark.parametrize(("words", "text"), DESCRIBED, ids=[text for _, text in DESCRIBED])
def test_a_line_in_words(words, text):
    assert contract.describe(words) == contract.describe(words.tolist()) == text


def test_agreement():
    same = line(shape=(4, 25))
    assert descriptor.agree(same, same.copy())
    assert descriptor.agree(same, line()) and descriptor.agree(line(), same)  # a flat array agrees with every shape
    others = [
        line("Reduce"),
        line(kind="int32"),
        line(op=operations.MEAN_),
        line(root=1),
        line(algorithm="ring"),
        line(count=101),
        line(shape=(25, 4)),
    ]
    for other in others:
        assert not descriptor.agree(same, other) and not descriptor.agree(other, same), contract.describe(other)
    wrong = line()
    wrong[layout.ERROR] = 5
    assert (
        not descriptor.agree(line(), wrong)
        and not descriptor.agree(wrong, line())
        and not descriptor.agree(wrong, wrong)
    )
    placed = line()
    placed[layout.SEND : layout.RECEIVE_OFFSET + 1] = 99  # where arrays lie is each rank's own affair
    placed[layout.CALL] = 7
    assert descriptor.agree(line(), placed)


def test_the_error_names_all_ranks_and_both_sides():
    error = contract.judge([0, 1, 2, 3, 7], [line(), line(), line(count=7), line(), line(count=7)], [""] * 5)
    assert isinstance(error, ContractError) and isinstance(error, AgreedError) and type(error) is AgreedContractError
    assert str(error) == (
        "ranks disagree on a collective call: ranks 0-1, 3 Allreduce(float32, 100 elements, SUM), "
        "ranks 2, 7 Allreduce(float32, 7 elements, SUM); all must pass the same"
    )


def test_what_differs_can_be_seen_in_the_error():
    """Whenever two lines do not agree, their words differ too."""
    pairs = [
        (line("Reduce_scatter", tells=descriptor.fingerprint((0, 3, 4))), line("Reduce_scatter", tells=5)),
        (
            line("Allgatherv", "int8", None, tells=descriptor.fingerprint((0, 3, 4))),
            line("Allgatherv", "int8", None, tells=5),
        ),
        (line(count=120, shape=(2, 3, 4, 5, 1)), line(count=120, shape=(2, 3, 4, 1, 5))),
        (line(count=24, shape=(4, 6)), line(count=24, shape=(6, 4))),
        (line(op=operations.resolve(MPI.BOR), kind="int8"), line(op=operations.resolve(MPI.BAND), kind="int8")),
    ]
    for a, b in pairs:
        assert not descriptor.agree(a, b)
        assert "rank 0 " in str(contract.judge([0, 1], [a, b], ["", ""])), contract.describe(a)


def test_wrong_arguments_come_before_differences():
    lines = [line(), line("?", "?", None), line(count=3)]
    error = contract.judge([0, 1, 2], lines, ["", "recvbuf: bad", ""])
    assert type(error) is AgreedUsageError and isinstance(error, UsageError) and isinstance(error, ValueError)
    assert str(error) == "rank 1: recvbuf: bad"
    assert str(contract.judge([0, 1, 2], lines, ["bad"] * 3)) == "bad"
    assert str(contract.judge([0, 1, 2], lines, ["bad", "worse", "bad"])) == "ranks 0, 2: bad; rank 1: worse"


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([0, 1], "ranks 0-1"),
        ([5, 0, 2, 1], "ranks 0-2, 5"),
        ([0, 2, 4], "ranks 0, 2, 4"),
        ([9, 10, 11, 13, 14], "ranks 9-11, 13-14"),
    ],
)
def test_names_of_ranks(ranks, text):
    assert name_ranks(ranks) == text
