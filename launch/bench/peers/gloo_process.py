"""One rank of Gloo in a process of its own: joins the others, then verifies and times what `gloo.py` asks for."""

import os
from collections.abc import Callable
from datetime import timedelta
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed

from psgd.launch.bench.peers import processes
from psgd.launch.bench.problem import ALLGATHER, ALLREDUCE, BCAST, BenchOptions, Problem

_OPS = {"sum": "SUM", "mean": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}


class GlooProcess:
    """The answers to what a rank asks."""

    def __init__(self) -> None:
        self._store: Any = None
        self._group = (0, 1)  # rank and size

    def reply(self, do: str, **words: Any) -> dict[str, Any]:
        """Answers one question by the method of its name."""
        known: dict[str, Callable[..., dict[str, Any]]]
        known = {"keep_store": self.keep_store, "join": self.join, "prepare": self.prepare, "rounds": self.rounds}
        return known[do](**words)

    def keep_store(self, host: str, size: int) -> dict[str, Any]:
        """On rank 0: the store through which ranks find each other, on a free port."""
        self._store = store(host, 0, size, True)
        return {"host": host, "port": self._store.port}

    def join(self, rank: int, size: int, interface: str, cores: list[int], host: str, port: int) -> dict[str, Any]:
        """Joins the process group; blocks until all have."""
        processes.bind(cores)
        os.environ["GLOO_SOCKET_IFNAME"] = interface
        if not interface:
            del os.environ["GLOO_SOCKET_IFNAME"]
        self._group = rank, size
        self._store = self._store or store(host, port, size, False)
        distributed.init_process_group("gloo", store=self._store, rank=rank, world_size=size)
        return {}

    def prepare(self, options: dict[str, Any], nbytes: int) -> dict[str, Any]:
        """Makes a problem's buffers, calls once and looks at every element."""
        problem = Problem(BenchOptions(**options), nbytes, *self._group)
        self._source = problem.source()
        recv = np.full(problem.receives, problem.dtype.type(0))
        # An all-reduce of PyTorch is in place, and so is every broadcast.
        alone = problem.collective in {ALLREDUCE, BCAST}
        send = recv if alone else np.empty(problem.sends, problem.dtype)
        self._takes = None if problem.collective == BCAST and problem.rank else send
        self._call = call(problem, send, recv)
        self._fill()
        self._call()
        expected = problem.expected()
        wrong = np.flatnonzero(recv != expected)
        if not wrong.size:
            return {"wrong": ""}
        first = int(wrong[0])
        return {"wrong": f"rank {problem.rank}: element {first} is {recv[first]:g}, expected {expected[first]:g}"}

    def _fill(self) -> None:
        if self._takes is not None:
            np.copyto(self._takes, self._source)

    def rounds(self, inner: int, repeats: int) -> dict[str, Any]:
        """This rank's seconds of a call in each round; each rewrites its values before, untimed."""
        seconds, timed_call = [], self._call
        for _ in range(repeats):
            self._fill()
            distributed.barrier()
            start = perf_counter()
            for _ in range(inner):
                timed_call()
            seconds.append((perf_counter() - start) / inner)
        distributed.barrier()  # who is done first does not wake its rank of MPI while others still run
        return {"seconds": seconds}


def store(host: str, port: int, size: int, master: bool) -> Any:
    """A store at that port, or on a free one."""
    return distributed.TCPStore(
        host, port, size, is_master=master, timeout=timedelta(seconds=processes.TIMEOUT_S), wait_for_workers=False
    )


def call(problem: Problem, send: NDArray[Any], recv: NDArray[Any]) -> Callable[[], object]:
    """The collective of a problem on NumPy's memory; an all-reduce is in place, in `recv`.

    Raises:
        TypeError: PyTorch does not have the dtype. The call itself raises RuntimeError where Gloo cannot do it.
    """
    to, source = torch.from_numpy(recv), torch.from_numpy(send)
    if problem.collective == BCAST:
        return lambda: distributed.broadcast(to, 0)
    if problem.collective == ALLGATHER:
        gather = _named("all_gather_single", "all_gather_into_tensor")
        return lambda: gather(to, source)
    op = getattr(distributed.ReduceOp, _OPS[problem.op])
    if problem.collective == ALLREDUCE:

        def reduce() -> object:
            return distributed.all_reduce(to, op)

    else:
        scatter = _named("reduce_scatter_single", "reduce_scatter_tensor")

        def reduce() -> object:
            return scatter(to, source, op)

    if problem.op != "mean":
        return reduce

    def mean() -> None:  # Gloo has none
        reduce()
        to.div_(problem.size)

    return mean


def _named(*names: str) -> Callable[..., Any]:
    """The first function that this PyTorch has: two were renamed.

    Raises:
        LookupError: it has none.
    """
    found = next((getattr(distributed, name) for name in names if hasattr(distributed, name)), None)
    if found is None:
        raise LookupError(f"this PyTorch has no {names[-1]}")
    made: Callable[..., Any] = found
    return made


if __name__ == "__main__":
    torch.set_num_threads(1)
    processes.answer(GlooProcess().reply)
