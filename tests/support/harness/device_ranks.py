"""What each rank of the tests on GPUs does; started by tests/collectives/device/test_device.py, or by hand.

Each check raises on the rank that sees the fault; `psgd.abort_on_exception` then ends the job.
"""

import itertools
import sys

import cupy
import numpy as np
from mpi4py import MPI

import psgd
from psgd import collectives
from psgd.collectives.device.pick_gpu import choose_device
from psgd.kernels.errors import ContractError, UsageError

SIZES = (0, 1, 63, 65, 4097, 100003, 1_000_001)


def values(rank, n, dtype="float32"):
    return ((np.arange(n) * (7 * rank + 3)) % 997 + rank).astype(dtype)


def verbs(comm):
    """Every verb on CuPy arrays, host result in float64 beside it, with guards around what is written."""
    rank, size = comm.rank, comm.size
    for n, dtype in itertools.product(SIZES, ("float32", "float64", "int32", "float16")):
        top = 64 if dtype == "float16" else 997
        everyone = [values(r, n, dtype) % top for r in range(size)]
        total = sum(e.astype(np.float64) for e in everyone) if n else np.zeros(0)
        send = cupy.asarray(everyone[rank])
        memory = cupy.full(n + 64, 99, dtype)
        recv = memory[32 : n + 32]
        comm.Allreduce(send, recv)
        np.testing.assert_array_equal(cupy.asnumpy(recv).astype(np.float64), total.astype(dtype).astype(np.float64))
        assert bool((memory[:32] == 99).all()) and bool((memory[n + 32 :] == 99).all())
        np.testing.assert_array_equal(cupy.asnumpy(send), everyone[rank])
        comm.Allreduce(MPI.IN_PLACE, send, MPI.MAX)
        np.testing.assert_array_equal(cupy.asnumpy(send), np.max(everyone, axis=0))
        block = cupy.asarray(np.concatenate([values(r + rank, n, dtype) % top for r in range(size)]))
        mine = cupy.zeros(n, dtype)
        comm.Reduce_scatter_block(block, mine)
        expected = sum((values(rank + r, n) % top).astype(np.float64) for r in range(size)) if n else np.zeros(0)
        np.testing.assert_array_equal(cupy.asnumpy(mine).astype(np.float64), expected)
        counts = [n + r for r in range(size)]
        whole = cupy.zeros(sum(counts), dtype)
        comm.Allgatherv(cupy.asarray(values(rank, counts[rank], dtype)), [whole, counts])
        np.testing.assert_array_equal(
            cupy.asnumpy(whole), np.concatenate([values(r, c, dtype) for r, c in enumerate(counts)])
        )
        gathered = cupy.zeros(n * size, dtype)
        comm.Allgather(cupy.asarray(values(rank, n, dtype)), gathered)
        np.testing.assert_array_equal(
            cupy.asnumpy(gathered), np.concatenate([values(r, n, dtype) for r in range(size)])
        )
        spread = cupy.asarray(values(rank, n, dtype))
        comm.Bcast(spread, size - 1)
        np.testing.assert_array_equal(cupy.asnumpy(spread), values(size - 1, n, dtype))
        out = cupy.zeros(n, dtype)
        comm.Reduce(cupy.asarray(everyone[rank]), out if rank == 0 else None, MPI.SUM, 0)
        if rank == 0:
            np.testing.assert_array_equal(cupy.asnumpy(out).astype(np.float64), total)
    mean = cupy.full(300_000, float(rank), np.float32)
    comm.Allreduce(MPI.IN_PLACE, mean, "mean")
    assert bool((mean == (size - 1) / 2).all())
    strided = cupy.zeros((1000, 400), np.float32)
    strided[:, ::2] = rank + 1
    comm.Allreduce(MPI.IN_PLACE, strided[:, ::2])
    assert bool((strided[:, ::2] == size * (size + 1) / 2).all()) and bool((strided[:, 1::2] == 0).all())
    flags = cupy.asarray(np.array([rank == 0, True]))
    comm.Allreduce(MPI.IN_PLACE, flags, MPI.LAND)
    assert flags.tolist() == [size == 1, True]
    for n in (1000, 300_000):  # by the host's memory, and by the ring
        bound, out = cupy.zeros(n, np.float32), cupy.zeros(n, np.float32)
        with comm.Allreduce_init(bound, out) as persistent:
            for turn in range(4):
                bound[:] = rank + turn
                if turn % 2:
                    persistent.run()
                else:
                    persistent.Start()
                    persistent.Wait()
                assert bool((out == size * turn + size * (size - 1) / 2).all())
    request = comm.Iallreduce(MPI.IN_PLACE, cupy.ones(500_000, np.float32) if rank < 0 else strided)
    request.Wait()


def same_bits(comm):
    """What the ring gives: the same bits on all ranks, twice."""
    rng = np.random.default_rng(comm.rank)
    mine = cupy.asarray((rng.standard_normal(1 << 20) * 10.0 ** rng.integers(-6, 6, 1 << 20)).astype(np.float32))
    first, again = cupy.empty_like(mine), cupy.empty_like(mine)
    comm.Allreduce(mine, first)
    comm.Allreduce(mine, again)
    assert bool((first.view(np.int32) == again.view(np.int32)).all())
    theirs = comm.comm.bcast(cupy.asnumpy(first).tobytes(), 0)
    assert theirs == cupy.asnumpy(first).tobytes()


def streams(comm):
    """200 times: the buffer is still being written on another stream when the call begins, and read at once after."""
    n = 1 << 20
    stream = cupy.cuda.Stream(non_blocking=True)
    buffer, slow = cupy.empty(n, np.float32), cupy.ones(1 << 24, np.float32)
    for turn in range(200):
        size = n if turn % 2 else 1000
        with stream:
            for _ in range(3):
                slow *= 1.0001
            buffer[:size] = turn + comm.rank
            if turn % 4 < 2:
                comm.Allreduce(MPI.IN_PLACE, buffer[:size])
        if turn % 4 >= 2:
            comm.Allreduce(MPI.IN_PLACE, buffer[:size], stream=stream)
        total = comm.size * turn + comm.size * (comm.size - 1) / 2
        assert bool((buffer[:size] == total).all()), (turn, total, buffer[:4], buffer[-4:])


def libraries(comm):
    """Arrays of PyTorch, JAX and Numba, where these are installed."""
    n, total = 400_000, comm.size * (comm.size + 1) / 2
    try:
        import torch
    except ImportError:
        pass
    else:
        device = torch.device("cuda", cupy.cuda.runtime.getDevice())
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            tensor = torch.full((n,), comm.rank + 1, dtype=dtype, device=device)
            comm.Allreduce(MPI.IN_PLACE, tensor)
            assert bool((tensor == total).all()), (dtype, tensor)
        grad = torch.ones(n, device=device, requires_grad=True)
        comm.Bcast(grad, 0)
        with torch.cuda.stream(torch.cuda.Stream()):
            tensor = torch.zeros(n, device=device)
            for _ in range(20):
                tensor += comm.rank + 1
            comm.Allreduce(MPI.IN_PLACE, tensor)
            assert bool((tensor == 20 * total).all())
    try:
        import jax
    except ImportError:
        pass
    else:
        here = cupy.cuda.runtime.getDevice()
        every = jax.devices()
        cupy.cuda.Device(here).use()  # JAX has left the last one current
        with jax.default_device(every[here]):
            sent = jax.numpy.full(n, comm.rank + 1, np.float32) * 2
        out = cupy.empty(n, np.float32)
        comm.Allreduce(sent, out)
        assert bool((out == 2 * total).all())
        refused(comm, "can never change", sent)
    try:
        from numba import cuda
    except ImportError:
        pass
    else:
        cuda.select_device(cupy.cuda.runtime.getDevice())
        array = cuda.to_device(np.full(n, comm.rank + 1, np.float32))
        comm.Allreduce(MPI.IN_PLACE, array)
        assert (array.copy_to_host() == total).all()


def refused(comm, word, array):
    """A call that must fail, on a communicator of its own: over messages, one mistake ends it."""
    other = collectives.Communicator(comm.comm)
    text = ""
    try:
        other.Allreduce(MPI.IN_PLACE, array)
    except (ContractError, UsageError) as error:
        text = str(error)
    if word not in text:
        raise AssertionError(f"expected an error with {word!r}, got {text!r}")
    other.free()


def mistakes(comm):
    """Another length, dtype or place on one rank: the same error on all, and the communicator goes on."""
    last = comm.rank == comm.size - 1
    if comm.size == 1:
        return
    for wrong in (
        cupy.ones(300_001 if last else 300_000, np.float32),
        cupy.ones(300_000, np.float64 if last else np.float32),
        np.ones(300_000, np.float32) if last else cupy.ones(300_000, np.float32),
    ):
        refused(comm, "disagree", wrong)
    good = cupy.ones(300_000, np.float32)
    comm.Allreduce(MPI.IN_PLACE, good)
    assert bool((good == comm.size).all())


def main():
    psgd.abort_on_exception()
    world = MPI.COMM_WORLD
    device = choose_device(world)
    comm = collectives.Communicator(world)
    for check in (verbs, same_bits, streams, libraries, mistakes):
        check(comm)
        world.Barrier()
        if world.rank == 0:
            print(f"{check.__name__}: fine on {world.size} ranks, {comm.last}", flush=True)
    big = cupy.ones(1 << 20, np.float32)
    comm.Allreduce(MPI.IN_PLACE, big)
    print(f"rank {world.rank}: device {device}, transport {comm.last[1]}", flush=True)
    comm.free()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
