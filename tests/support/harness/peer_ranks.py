"""What each rank does in the tests of GPUs that are peers: `python peer_ranks.py CALLS`, or `... killed`.

Each check raises on the rank that sees the fault; `psgd.abort_on_exception` then ends the job.
"""

import os
import signal
import sys
import time

import cupy
import numpy as np
from mpi4py import MPI

import psgd
from psgd import collectives
from psgd.collectives.device.pick_gpu import choose_device
from psgd.kernels.errors import ContractError, PeerLostError, UsageError

# Each pair is compiled for each kernel; test_one_shot has all of them.
PAIRS = (("float32", "sum"), ("float32", "mean"), ("float16", "sum"), ("float64", "sum"), ("int8", "max"))
SIZES = (0, 1, 7, 63, 64, 65, 1023, 4097, 100_003, 262_144, 262_145, 524_289, 1_500_001, 3_000_017)
REDUCTIONS = {"sum": np.add, "max": np.maximum, "mean": np.add}


def reduced(values, op, kind):
    """What all ranks must get: in rank order, 16-bit floats in float32."""
    total = values[0].astype(np.float32) if kind == "float16" else values[0].copy()
    for each in values[1:]:
        total = REDUCTIONS[op](total, each.astype(total.dtype))
    return (total / np.asarray(len(values), total.dtype) if op == "mean" else total).astype(kind)


class Draw:
    """One random call, the same on all ranks."""

    def __init__(self, rng, size):
        self.n = int(rng.choice(SIZES)) if rng.random() < 0.5 else int(10 ** rng.uniform(0, 6.3))
        self.kind, self.op = PAIRS[int(rng.integers(len(PAIRS)))]
        self.in_place = bool(rng.integers(2))
        self.at = int(rng.integers(9))
        self.root = int(rng.integers(size))
        self.seed = int(rng.integers(1 << 30))
        self.size = size

    def __repr__(self):
        return f"n={self.n} {self.kind} {self.op} in_place={self.in_place} at={self.at} root={self.root}"

    def values(self, n):
        rngs = [np.random.default_rng([self.seed, rank]) for rank in range(self.size)]
        return [rng.integers(1, 100, n).astype(self.kind) for rng in rngs]

    def guarded(self, n):
        """Memory of n elements with guards on both sides."""
        whole = cupy.full(n + 32, 77, self.kind)
        return whole[self.at : self.at + n], whole

    def check(self, got, whole, expected):
        np.testing.assert_array_equal(got.get(), expected, str(self))
        n = got.size
        assert (whole[: self.at] == 77).all() and (whole[self.at + n :] == 77).all(), self


def allreduce(comm, draw):
    values = draw.values(draw.n)
    mine, around = draw.guarded(draw.n)
    mine[...] = cupy.asarray(values[comm.rank])
    if draw.in_place:
        comm.Allreduce(MPI.IN_PLACE, mine, draw.op)
    else:
        sent, (mine, around) = mine, draw.guarded(draw.n)
        comm.Allreduce(sent, mine, draw.op)
        np.testing.assert_array_equal(sent.get(), values[comm.rank])
    draw.check(mine, around, reduced(values, draw.op, draw.kind))


def bcast(comm, draw):
    values = draw.values(draw.n)
    mine, around = draw.guarded(draw.n)
    if comm.rank == draw.root:
        mine[...] = cupy.asarray(values[draw.root])
    comm.Bcast(mine, draw.root)
    draw.check(mine, around, values[draw.root])


def reduce_scatter(comm, draw):
    counts = [draw.n // (rank + 1) % 70_000 + rank for rank in range(comm.size)]
    start, own = sum(counts[: comm.rank]), counts[comm.rank]
    values = draw.values(sum(counts))
    vector = cupy.asarray(values[comm.rank])
    if draw.in_place:
        comm.Reduce_scatter(MPI.IN_PLACE, vector, counts, draw.op)
        got, around = vector[:own], None
    else:
        got, around = draw.guarded(own)
        comm.Reduce_scatter(vector, got, counts, draw.op)
    expected = reduced(values, draw.op, draw.kind)[start : start + own]
    np.testing.assert_array_equal(got.get(), expected, str(draw))
    if around is not None:
        draw.check(got, around, expected)


def allgather(comm, draw):
    counts = [draw.n // (rank + 1) % 70_000 + rank for rank in range(comm.size)]
    start, own = sum(counts[: comm.rank]), counts[comm.rank]
    values = [each[:n] for each, n in zip(draw.values(max(counts)), counts, strict=True)]
    got, around = draw.guarded(sum(counts))
    mine = cupy.asarray(values[comm.rank])
    if draw.in_place:
        got[start : start + own] = mine
    comm.Allgatherv(MPI.IN_PLACE if draw.in_place else mine, [got, counts])
    draw.check(got, around, np.concatenate(values))


def random_calls(comm, calls):
    rng = np.random.default_rng(11)
    ways = set()
    for _ in range(calls):
        (allreduce, allreduce, bcast, reduce_scatter, allgather)[int(rng.integers(5))](comm, Draw(rng, comm.size))
        ways.add(comm.last)
    assert {way for _, way in ways} == {"peers"}, ways
    return sorted(name for name, _ in ways)


def differ(comm, kind, call):
    """A call that must fail with one text on all ranks, soon, and leave the communicator usable."""
    began = time.perf_counter()
    try:
        call()
    except kind as error:
        text = str(error)
    else:
        raise AssertionError(f"rank {comm.rank}: no error")
    assert time.perf_counter() - began < 10, text
    assert comm.comm.bcast(text, 0) == text
    good = cupy.ones(5000, np.float32)
    comm.Allreduce(MPI.IN_PLACE, good)
    assert (good == comm.size).all()


def mistakes(comm):
    """Ranks that pass different calls: in kernels, and where one rank is not in a kernel at all."""
    first = comm.rank == 0
    ones = cupy.ones
    for array, op in (
        (ones(1000 + first, np.float32), MPI.SUM),
        (ones(1 << 21, np.int32 if first else np.float32), MPI.SUM),
        (ones(1000, np.float32), MPI.MAX if first else MPI.SUM),
        (ones((10, 100) if first else (100, 10), np.float32), MPI.SUM),
        (np.ones(1000, np.float32) if first else ones(1000, np.float32), MPI.SUM),
    ):
        differ(comm, ContractError, lambda array=array, op=op: comm.Allreduce(MPI.IN_PLACE, array, op))
    x = ones(1000, np.float32)
    differ(comm, ContractError, lambda: comm.Barrier() if first else comm.Allreduce(MPI.IN_PLACE, x))
    differ(comm, ContractError, lambda: comm.Bcast(x, 0) if first else comm.Allreduce(MPI.IN_PLACE, x))
    differ(comm, UsageError, lambda: comm.Allreduce(x, "no array" if first else x))


def streams_and_graphs(comm):
    """Enqueued calls on two streams, in graphs, and blocking ones between them."""
    size = comm.size
    one, two = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    x = cupy.full(70_000, float(comm.rank), np.float32)
    cupy.cuda.Device().synchronize()
    comm.Allreduce_enqueue(MPI.IN_PLACE, x, "mean", stream=one)
    for turn in range(20):
        stream = two if turn % 3 else one
        with stream:
            comm.Allreduce_enqueue(MPI.IN_PLACE, x, "mean")
        (one if stream is two else two).wait_event(stream.record())
    for stream in (one, two):
        stream.synchronize()
    assert (x == (size - 1) / 2).all()
    with one:
        one.begin_capture()
        for _ in range(3):
            comm.Allreduce(MPI.IN_PLACE, x)
            x *= np.float32(1 / size)
        graph = one.end_capture()
        x[...] = comm.rank
        for _ in range(5):
            graph.launch()
        one.synchronize()
    assert (x == (size - 1) / 2).all()
    comm.Allreduce(MPI.IN_PLACE, x)
    assert (x == size * (size - 1) / 2).all()


def requests(world):
    """Calls by the thread of non-blocking ones, before any other: on two GPUs its current one is not each rank's."""
    size, rank = world.size, world.rank
    with collectives.Communicator(world) as comm:
        assert comm.threaded
        for n in (1000, 200_000, 3_500_000):  # few blocks, more, and all, in several pieces
            own, whole = cupy.full(n, rank + 1, np.float32), cupy.zeros(n * size, np.float32)
            mine = cupy.zeros(n, np.float32)
            gathers = comm.Allgatherv_init(own, [whole, [n] * size])
            scatters = comm.Reduce_scatter_init(whole, mine, [n] * size)
            for _ in range(3):
                for call in (gathers, scatters):
                    call.Start()
                    call.Wait()
            for each in range(size):
                assert (whole[each * n : (each + 1) * n] == each + 1).all()
            assert (mine == size * (rank + 1)).all()
            assert gathers.last == ("staged", "peers")
            on_streams(comm, gathers, scatters, own, whole, mine)


def on_streams(comm, gathers, scatters, own, whole, mine):
    """The same calls put on a stream, beside others that are started; the host waits once."""
    side, n = cupy.cuda.Stream(non_blocking=True), own.size
    for turn in range(6):
        own[...] = comm.rank + turn
        side.wait_event(cupy.cuda.get_current_stream().record())
        with side:
            if turn != 3:
                assert gathers.Enqueue() and scatters.Enqueue()
            else:  # ranks need not choose alike
                assert gathers.Enqueue()
                scatters.Start()
                scatters.Wait()
            event = side.record()
        cupy.cuda.get_current_stream().wait_event(event)
        for each in range(comm.size):
            assert (whole[each * n : (each + 1) * n] == each + turn).all(), turn
        assert (mine == comm.size * (comm.rank + turn)).all(), turn
    assert gathers.Enqueue()
    gathers.Wait()
    assert gathers.last == ("staged", "peers")


def killed(comm):
    """The last rank dies while the others are in a kernel: they say so soon."""
    x = cupy.ones(1000, np.float32)
    comm.Allreduce(MPI.IN_PLACE, x)
    comm.comm.Barrier()
    if comm.rank == comm.size - 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.perf_counter()
    try:
        comm.Allreduce(MPI.IN_PLACE, x)
    except PeerLostError as error:
        print(f"lost {time.perf_counter() - began - 0.5:.2f} {error}", flush=True)
    cupy.cuda.Device().synchronize()  # no kernel waits any more
    print("free", flush=True)
    time.sleep(1)  # the first to leave has the others killed
    os._exit(3)


def main():
    psgd.abort_on_exception()
    world = MPI.COMM_WORLD
    choose_device(world)
    if sys.argv[1] != "killed":
        requests(world)
    comm = collectives.Communicator(world)
    if sys.argv[1] == "killed":
        killed(comm)
    names = random_calls(comm, int(sys.argv[1]))
    for check in (mistakes, streams_and_graphs):
        check(comm)
        world.Barrier()
    if world.rank == 0:
        print("kernels", *names, flush=True)
    comm.free()


if __name__ == "__main__":
    main()
