import numpy as np
import pytest

from psgd.collectives.arguments.call import Call
from psgd.collectives.mpi.split import split


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8"])
def test_near_equal_chunks_are_whole_cache_lines(dtype):
    send = np.zeros(1000, dtype)
    call = Call("Allreduce", send=send, recv=send, count=1000)
    assert call.itemsize == send.itemsize and call.nbytes == call.longest == send.nbytes
    assert call.ranges(3) == split(1000, 3, 64 // send.itemsize)
    assert call.table() is None


def test_chunks_as_the_caller_has_them():
    send, recv = np.zeros(3), np.zeros(20)
    call = Call("Allgatherv", send=send, recv=recv, starts=[10, 0, 4], lengths=[3, 4, 5], count=12)
    assert call.ranges(3) == [range(10, 13), range(4), range(4, 9)]
    assert call.table().tolist() == [[10, 3], [0, 4], [4, 5]]
    assert (call.nbytes, call.longest) == (12 * 8, 5 * 8)


def test_without_arrays_an_element_is_a_byte():
    assert Call("Barrier").itemsize == 1 and Call("Barrier").nbytes == 0


def test_results_go_back_in_order():
    call, done = Call("Bcast"), []
    call.finish += [lambda: done.append(1), lambda: done.append(2)]
    call.done()
    assert done == [1, 2]
