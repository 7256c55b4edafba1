"""Which calls the ring on GPUs takes, and what it works on."""

import numpy as np
import pytest
from harness.device import cupy
from mpi4py import MPI

from psgd.collectives.arguments import operations

pytestmark = pytest.mark.gpu
SUM = operations.resolve(MPI.SUM)


def views(n, dtype="float32"):
    xp = cupy()
    from psgd.collectives.arguments import device_arrays

    return [device_arrays.view(xp.zeros(n, dtype), name, True) for name in ("sendbuf", "recvbuf")]


def test_arrays_of_known_types_are_taken_and_large_ones_by_the_ring():
    send, recv = views(200_000)
    from psgd.collectives.arguments import device_call

    assert device_call.takes(send, recv, SUM) and device_call.takes(send, recv, None)
    odd = views(200_000, "complex64")
    assert not device_call.takes(*odd, SUM) and device_call.takes(*odd, None)
    assert device_call.takes(*views(400_000, "float16"), SUM)
    for n in (device_call.SMALLEST_BYTES // 4 - 1, device_call.SMALLEST_BYTES // 4):
        call = device_call.reduction("Allreduce", SUM, *views(n), slice(0, n), n, None)
        assert call.job.ring == (4 * n >= device_call.SMALLEST_BYTES) and call.job.nbytes == 4 * n


def test_16_bit_floats_go_round_as_float32():
    send, recv = views(300_000, "float16")
    from psgd.collectives.arguments import device_call

    call = device_call.reduction("Allreduce", SUM, send, recv, slice(0, 300_000), 300_000, None)
    assert (call.job.kind, call.job.halves, call.kind, call.count) == ("float32", "float16", "float16", 300_000)


def test_a_gather_is_of_bytes():
    send, recv = views(6)
    from psgd.collectives.arguments import device_call

    call = device_call.gather("Allgatherv", send, recv, [0, 2], [2, 4], None)
    assert (call.send.dtype, call.starts, call.lengths) == (np.uint8, [0, 8], [8, 16])
    assert device_call.same_place(call.recv, recv.memory) and not device_call.same_place(call.send, call.recv)
