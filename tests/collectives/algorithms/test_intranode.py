"""The three ways through shared memory, each by name, against NumPy; and what fits the first."""

import numpy as np
import pytest
from harness.oracle import REDUCING, SHARED, VERBS, check, communicator

from psgd.collectives.algorithms import intranode
from psgd.collectives.arguments.call import Call
from psgd.collectives.shm import layout


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize("algorithm", SHARED)
def test_every_verb_in_each_way(comm, algorithm):
    with communicator(comm) as c:
        for verb in VERBS:
            for n in (0, 1, comm.size + 1, 1023) if algorithm == "inline" else (1, 1023, 40_011):
                check(c, verb, n, "float32", "SUM", algorithm)
            check(c, verb, 257, "int64", "MAX" if verb in REDUCING else "SUM", algorithm)


@pytest.mark.parametrize(
    ("n", "fits"), [(0, True), (layout.INLINE_BYTES // 8, True), (layout.INLINE_BYTES // 8 + 1, False)]
)
def test_what_fits_behind_a_descriptor(n, fits):
    send = np.zeros(n)
    call = Call("Bcast", send=send, recv=send, starts=[0, 0], lengths=[n, 0])
    assert intranode.fits_inline(call) == fits


def test_ones_own_block_is_copied_once():
    recv = np.zeros(6)
    send = np.array([7.0, 8.0])
    intranode.copy_own(Call("Allgather", send=send, recv=recv), range(2, 4))
    assert recv.tolist() == [0, 0, 7, 8, 0, 0]
    place = recv[4:6]
    intranode.copy_own(Call("Allgather", send=place, recv=recv), range(4, 6))  # in place already
    intranode.copy_own(Call("Allgather", send=send, recv=recv), range(0, 0))
    assert recv.tolist() == [0, 0, 7, 8, 0, 0]
