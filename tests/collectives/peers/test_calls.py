"""From a parsed call to a kernel: all ranks of one process, on one GPU."""

import numpy as np
import pytest
from harness.device import cupy
from harness.one_gpu import group, values
from mpi4py import MPI

pytestmark = pytest.mark.gpu


def run(verb, arguments):
    """One call on all ranks, whose arguments are given by rank."""
    from psgd.collectives.arguments import parse
    from psgd.collectives.peers import calls
    from psgd.collectives.peers.run import launch

    groups, streams = group(len(arguments))
    made = []
    for rank, (each, given) in enumerate(zip(groups, arguments, strict=True)):
        call = parse.VERBS[verb](len(arguments), rank, *given)
        made.append(calls.prepare(each, call, 5))
    cupy().cuda.Device().synchronize()
    for each, stream in zip(made, streams, strict=True):
        launch(each, stream.ptr)
    for stream in streams:
        stream.synchronize()
    assert [int(each.host[1]) for each in groups] == [0] * len(groups)
    return {each.shape.kernel for each in made}


def test_reduce_scatter_in_place_does_not_overwrite_what_it_sends():
    xp = cupy()
    host = values(3, 30_000, "float32")
    mine = [xp.asarray(each) for each in host]
    assert run("Reduce_scatter_block", [(MPI.IN_PLACE, each, MPI.SUM) for each in mine]) == {"staged"}
    for rank, each in enumerate(mine):
        np.testing.assert_array_equal(each[:10_000].get(), sum(host)[rank * 10_000 : (rank + 1) * 10_000])


def test_allgather_and_bcast_move_any_type():
    xp = cupy()
    mine = [xp.full(7, rank + 1j, np.complex64) for rank in range(3)]
    whole = [xp.zeros(21, np.complex64) for _ in mine]
    run("Allgather", list(zip(mine, whole, strict=True)))
    for each in whole:
        assert each.tolist() == [rank + 1j for rank in range(3) for _ in range(7)]
    run("Bcast", [(each, 2) for each in mine])
    assert all((each == 2 + 1j).all() for each in mine)


@pytest.mark.parametrize(("n", "kernel"), [(1000, "flagged"), (200_000, "pulled"), (400_000, "staged")])
def test_allreduce_of_each_size(n, kernel):
    xp = cupy()
    host = values(3, n, "float32")
    mine = [xp.asarray(each) for each in host]
    assert run("Allreduce", [(MPI.IN_PLACE, each, "mean") for each in mine]) == {kernel}
    for each in mine:
        np.testing.assert_array_equal(each.get(), sum(host) / np.float32(3))


def test_what_has_kernels():
    cupy()
    from psgd.collectives.arguments.operations import MAX_, MEAN_, SUM_, resolve
    from psgd.collectives.peers import calls

    assert calls.takes("bfloat16", SUM_) and calls.takes("int8", MAX_) and calls.takes("complex64", None)
    assert not calls.takes("complex64", SUM_) and not calls.takes("int8", MEAN_)
    assert not calls.takes("int32", resolve(MPI.BAND))


def test_fingerprints_are_of_signature_and_count():
    cupy()
    from psgd.collectives.peers.calls import fingerprint

    assert len({fingerprint(sign, count) for sign in (1, 2, 1 << 40) for count in (0, 1, 1 << 33)}) == 9
    assert all(fingerprint(0, count) for count in range(100))
