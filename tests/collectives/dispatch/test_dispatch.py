"""Which algorithms a collective has where, and how long the messages of a pipeline are."""

from types import SimpleNamespace

import numpy as np
import pytest
from harness.oracle import MESSAGES, SHARED, VERBS, communicator, two_nodes
from mpi4py import MPI

from psgd.collectives.arguments.call import Call
from psgd.collectives.dispatch import dispatch
from psgd.kernels.errors import UsageError


def engine(size=4, local=False, shared=False, one_node=False):
    return SimpleNamespace(size=size, local=local, shared="shared" if shared or local else None, one_node=one_node)


@pytest.mark.parametrize("verb", VERBS)
def test_what_there_is(verb):
    far, near = dispatch.available(verb, engine()), dispatch.available(verb, engine(local=True, one_node=True))
    chunked = ["chunked"] if verb in ("Allreduce", "Reduce") else []
    assert set(far) == set(MESSAGES[verb]) and set(near) == {*far, *SHARED, *chunked}
    several = set(dispatch.available(verb, engine(shared=True)))
    assert several - set(far) == ({"hierarchical"} if verb == "Allreduce" else set())


def call(n=10, verb="Allreduce", code=0):
    return Call(
        verb, send=np.zeros(n), recv=np.zeros(n), count=n, op=SimpleNamespace(code=code) if code is not None else None
    )


def test_what_there_is_not_is_refused_by_name():
    dispatch.check_algorithm("Allreduce", "ring", engine(), call())
    dispatch.check_algorithm("Allreduce", "inline", engine(local=True), call())
    for name, where, what, words in (
        ("rink", engine(), call(), "expected one of .*, got 'rink'$"),
        ("inline", engine(), call(), "which does not support this collective, operation, size or placement of ranks"),
        ("inline", engine(local=True), call(100_000), "got 'inline', which"),
        ("ring", engine(), call(code=-1), "expected one of native, got 'ring', which"),
        ("chain", engine(), call(), "got 'chain', which"),
    ):
        with pytest.raises(UsageError, match=words):
            dispatch.check_algorithm("Allreduce", name, where, what)
    with pytest.raises(UsageError, match="got 'rink'"):
        dispatch.check_algorithm("Allreduce", "rink", engine(size=1), call())


def test_messages_of_a_pipeline():
    near, far = engine(one_node=True), engine()
    assert dispatch._segment(near, call(10**6)) == dispatch.NODE_SEGMENT_BYTES // 8
    assert dispatch._segment(far, call(10**6, "Bcast")) == dispatch.SEGMENT_BYTES // 8
    before = dispatch._ASKS
    try:
        dispatch._ASKS = True
        assert dispatch._segment(far, call(10**6)) == dispatch.EAGER_BYTES // 8
        dispatch._ASKS = False
        lengths = [dispatch._segment(far, call(n)) * 8 for n in (100, 10**6, 10**8)]
    finally:
        dispatch._ASKS = before
    assert lengths == [dispatch.SHORTEST_BYTES, 8 * (8 * 10**6 // 64 // 8), dispatch.SEGMENT_BYTES]


@pytest.mark.ranks(3)
def test_the_last_call_tells_what_it_took(comm):
    x, y = np.ones(1000), np.zeros(1000)
    with communicator(comm, PSGD_SHARED="0") as c:
        for name, way in (("ring", "messages"), ("native", "mpi"), ("recursive_doubling", "messages")):
            c.Allreduce(x, y, MPI.SUM, algorithm=name)
            assert c.last == (name, way) and (y == 3).all()
    with two_nodes(), communicator(comm) as c:
        c.Allreduce(x, y, MPI.SUM, algorithm="hierarchical")
        assert c.last[0] == "hierarchical"
