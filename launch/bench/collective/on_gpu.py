"""`psgd bench allreduce --device cuda`: psgd's all-reduce of GPU arrays beside NCCL's, PyTorch's and copies by hand."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from psgd.kernels.errors import UsageError
from psgd.kernels.memory.gc_paused import gc_paused
from psgd.launch.bench.collective.contenders import OPS
from psgd.launch.bench.collective.ranks import WrongResultError, mpi_name
from psgd.launch.bench.collective.table import (
    BY_HAND,
    COPIES,
    GRAPH,
    NCCL,
    NCCL_GRAPH,
    PRIVATE,
    STAGED,
    TORCH,
    Row,
)
from psgd.launch.bench.peers.nccl import Nccl, TorchNccl
from psgd.launch.bench.problem import BenchOptions, Problem

REPEATS = 15
_WARM_UP = 3
_TILE = 1 << 20  # elements that are computed on the host; larger vectors repeat them
_IN_GRAPH = 20  # calls of a CUDA graph
_LONG = 64 << 20  # bytes from which a graph of fewer is long enough
_PEERS, _AWARE = "peers", "cuda-aware mpi"


def measure(comm: MPI.Intracomm, options: BenchOptions, sizes: Sequence[int]) -> Iterator[Row]:
    """Verifies and times each size in turn, all in place; collective, so all ranks must take every row.

    Times are those between two events of the current stream, around each call or around a CUDA graph of several; the
    median over the repeats of the slowest rank's.

    Raises:
        UsageError: no GPU or no CuPy.
        WrongResultError: some contender errs, on all ranks.
    """
    from psgd import collectives
    from psgd.collectives.device.pick_gpu import choose_device

    choose_device(comm)
    with collectives.Communicator(comm) as ours, collectives.Communicator(comm) as staged:
        transport = _first_call(comm, ours, {})
        _first_call(comm, staged, {"PSGD_CUDA_AWARE": "0", "PSGD_PEERS": "0"})
        nccl = Nccl.start(comm) if options.peers else None
        torch = TorchNccl.start(comm) if options.peers else None
        for nbytes in sizes:
            calls = _Calls(comm, options, nbytes)
            ways: dict[str, Callable[[], object]] = {}
            if transport in (_PEERS, _AWARE):
                ways[PRIVATE] = calls.by(ours, options)
            ways[STAGED] = calls.by(staged, options)
            if nccl is not None:
                ways[NCCL] = calls.nccl(nccl)
            if torch is not None:
                ways[TORCH] = calls.torch(torch)
            if options.peers:
                ways[BY_HAND] = calls.by_hand
            for name, way in ways.items():
                calls.verify(name, way)
            if options.peers:
                ways[COPIES] = calls.copies()
            repeats = options.repeats or REPEATS
            seconds = {name: _timed(comm, way, repeats) for name, way in ways.items()}
            if transport == _PEERS:
                seconds |= {
                    inside: _timed_graph(comm, ways[name], repeats, calls.problem.nbytes)
                    for inside, name in ((GRAPH, PRIVATE), (NCCL_GRAPH, NCCL))
                    if name in ways
                }
            used = {name: one.last for name, one in ((PRIVATE, ours), (STAGED, staged)) if name in ways}
            yield Row(calls.problem.nbytes, comm.size, repeats, mpi_name(), seconds, used)
            del calls, ways
            _free()
        for peer in (torch, nccl):
            if peer is not None:
                peer.close()


def _first_call(comm: MPI.Intracomm, ours: Any, variables: dict[str, str]) -> str:
    """Has a communicator decide how it reaches GPUs, with these variables set; returns the transport."""
    import cupy

    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        ours.Allreduce(MPI.IN_PLACE, cupy.zeros(1 << 20, np.float32))
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    return str(ours.last[1])


class _Calls:
    """One size's vector on this rank's GPU, and the ways to reduce it in place."""

    def __init__(self, comm: MPI.Intracomm, options: BenchOptions, nbytes: int) -> None:
        import cupy

        self.problem = Problem(options, nbytes, comm.rank, comm.size)
        tile = Problem(options, min(self.problem.nbytes, _TILE * self.problem.dtype.itemsize), comm.rank, comm.size)
        self._comm, self._op = comm, options.op
        self._source = self._tiled(cupy.asarray(tile.source()))
        self._expected = cupy.asarray(tile.expected())
        self.vector = cupy.empty_like(self._source)

    def _tiled(self, tile: Any) -> Any:
        import cupy

        out = cupy.empty(self.problem.n, tile.dtype)
        for start in range(0, out.size, tile.size):
            part = out[start : start + tile.size]
            part[...] = tile[: part.size]
        return out

    def by(self, ours: Any, options: BenchOptions) -> Callable[[], object]:
        """The call of psgd."""
        op = "mean" if options.op == "mean" else OPS[options.op]
        return lambda: ours.Allreduce(MPI.IN_PLACE, self.vector, op)

    def nccl(self, peer: Nccl) -> Callable[[], object]:
        """NCCL's, called through CuPy."""
        return lambda: peer.allreduce(self.vector, self._op)

    def torch(self, peer: TorchNccl) -> Callable[[], object]:
        """The same from PyTorch."""
        return peer.call(self.vector, self._op)

    def by_hand(self) -> None:
        """What a program does whose MPI knows nothing of GPUs."""
        import cupy

        host = cupy.asnumpy(self.vector)
        self._comm.Allreduce(MPI.IN_PLACE, host, OPS[self._op])
        if self._op == "mean":
            host /= self._comm.size
        self.vector.set(host)

    def copies(self) -> Callable[[], object]:
        """What staging cannot be faster than: pinned copies of the ring's bytes, out and in at once."""
        import cupy

        size = self._comm.size
        nbytes = max(1, 2 * (size - 1) * self.problem.nbytes // size)
        memory = [cupy.cuda.alloc_pinned_memory(nbytes) for _ in range(2)]
        scratch = cupy.empty(nbytes, np.uint8)
        there, back = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))

        def both() -> None:
            default = cupy.cuda.runtime.memcpyDefault
            cupy.cuda.runtime.memcpyAsync(memory[0].ptr, scratch.data.ptr, nbytes, default, there.ptr)
            cupy.cuda.runtime.memcpyAsync(scratch.data.ptr, memory[1].ptr, nbytes, default, back.ptr)
            there.synchronize()
            back.synchronize()

        return both

    def verify(self, name: str, way: Callable[[], object]) -> None:
        """Runs a contender once on fresh values and looks at every element.

        Raises:
            WrongResultError: on all ranks.
        """
        import cupy

        self.vector[...] = self._source
        way()
        cupy.cuda.get_current_stream().synchronize()
        tile = self._expected
        fine = all(
            bool((self.vector[start : start + tile.size] == tile[: self.vector.size - start]).all())
            for start in range(0, self.vector.size, tile.size)
        )
        word = np.array([fine], np.uint8)
        self._comm.Allreduce(MPI.IN_PLACE, word, MPI.MIN)
        if not word[0]:
            raise WrongResultError(f"bench allreduce: {name}, {self.problem.nbytes} bytes: wrong result")


def _timed(comm: MPI.Intracomm, way: Callable[[], object], repeats: int) -> float:
    """Seconds: the median over the repeats of the slowest rank's time between two events."""
    import cupy

    stream = cupy.cuda.get_current_stream()
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    for _ in range(_WARM_UP):
        way()
    seconds = np.zeros(repeats)
    for turn in range(repeats):
        stream.synchronize()
        comm.Barrier()
        begin.record(stream)
        way()
        end.record(stream)
        end.synchronize()
        seconds[turn] = cupy.cuda.get_elapsed_time(begin, end) / 1e3
    comm.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
    return float(np.median(seconds))


def _timed_graph(comm: MPI.Intracomm, way: Callable[[], object], repeats: int, nbytes: int) -> float:
    """The same for one of the calls of a CUDA graph, which the host starts all at once."""
    import cupy

    calls = _IN_GRAPH if nbytes < _LONG else 4
    with cupy.cuda.Stream(non_blocking=True) as stream:
        way()
        stream.synchronize()
        comm.Barrier()
        with gc_paused():
            stream.begin_capture()
            for _ in range(calls):
                way()
            graph = stream.end_capture()
        graph.upload(stream)
        return _timed(comm, graph.launch, repeats) / calls


def _free() -> None:
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
    cupy.get_default_pinned_memory_pool().free_all_blocks()


def check(options: BenchOptions, tune: bool) -> None:
    """Refuses what the GPU's benchmark does not do.

    Raises:
        UsageError: one line.
    """
    if tune:
        raise UsageError("--tune: expected --device cpu with it; nothing is tuned for GPUs")
    if options.algorithm not in (None, "ring"):
        raise UsageError(f"--algorithm {options.algorithm}: expected ring with --device cuda, or none")
