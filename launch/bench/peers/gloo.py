"""Gloo, PyTorch's collectives on CPUs, on the ranks of an MPI communicator. PyTorch is imported when it starts."""

import contextlib
import importlib.util
import os
import socket
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.launch.bench.problem import ALLGATHER, ALLREDUCE, BCAST, Problem

TIMEOUT_S = 120.0


def installed() -> bool:
    """Whether PyTorch can be imported; does not import it."""
    return importlib.util.find_spec("torch") is not None


class Gloo:
    """PyTorch's default process group, one thread a rank. Made by `start`, ended by `close`."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm

    @classmethod
    def start(cls, comm: MPI.Intracomm) -> "Gloo | None":
        """Starts it on all ranks, or finds that some rank cannot. Collective, blocks."""
        if not on_all(comm, installed()):
            return None
        hosts = set(comm.allgather(socket.gethostname()))
        started = False
        try:
            import torch
            from torch import distributed

            torch.set_num_threads(1)
            ready = distributed.is_gloo_available() and not distributed.is_initialized()
        except (ImportError, OSError, AttributeError):
            ready = False
        if not on_all(comm, ready):
            return None
        if len(hosts) == 1 and sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store = meet(comm, "127.0.0.1" if len(hosts) == 1 else socket.gethostname())
        if on_all(comm, store is not None):
            with contextlib.suppress(RuntimeError, ValueError):
                distributed.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size)
                started = True
            if on_all(comm, started):
                return cls(comm)
        if started:
            distributed.destroy_process_group()
        return None

    def call(self, problem: Problem, send: NDArray[Any], recv: NDArray[Any]) -> Callable[[], object]:
        """The collective of a problem on NumPy's memory. An allreduce is in place, in `recv`.

        The first call raises RuntimeError, TypeError or ValueError on all ranks where PyTorch cannot do it.
        """
        import torch
        from torch import distributed

        try:
            to, source = torch.from_numpy(recv), torch.from_numpy(send)
        except TypeError as error:
            return _raiser(error)
        if problem.collective == BCAST:
            return lambda: distributed.broadcast(to, 0)
        if problem.collective == ALLGATHER:
            gather = _named(distributed, "all_gather_single", "all_gather_into_tensor")
            return lambda: gather(to, source)
        names = {"sum": "SUM", "mean": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}
        op = getattr(distributed.ReduceOp, names[problem.op])
        if problem.collective == ALLREDUCE:

            def reduce() -> object:
                return distributed.all_reduce(to, op)

        else:
            scatter = _named(distributed, "reduce_scatter_single", "reduce_scatter_tensor")

            def reduce() -> object:
                return scatter(to, source, op)

        if problem.op != "mean":
            return reduce

        def mean() -> None:  # Gloo has none
            reduce()
            to.div_(problem.size)

        return mean

    def close(self) -> None:
        """Ends it. Collective."""
        from torch import distributed

        self._comm.Barrier()
        distributed.destroy_process_group()


def meet(comm: MPI.Intracomm, host: str) -> Any:
    """The store through which ranks find each other, kept by rank 0 on a free port; None where it failed."""
    from torch.distributed import TCPStore

    store, port = None, np.zeros(1, np.int64)
    timeout = timedelta(seconds=TIMEOUT_S)
    if comm.rank == 0:
        with contextlib.suppress(RuntimeError, OSError):
            store = TCPStore(host, 0, comm.size, is_master=True, timeout=timeout, wait_for_workers=False)
            port[0] = store.port
    comm.Bcast(port, 0)
    host = comm.bcast(host, 0)
    if comm.rank and port[0]:
        with contextlib.suppress(RuntimeError, OSError):
            store = TCPStore(host, int(port[0]), comm.size, is_master=False, timeout=timeout)
    return store


def _named(module: Any, *names: str) -> Callable[..., Any]:
    """The first function that this PyTorch has: two were renamed."""
    found = next((getattr(module, name) for name in names if hasattr(module, name)), None)
    return found or _raiser(RuntimeError(f"this PyTorch has no {names[-1]}"))


def _raiser(error: Exception) -> Callable[..., Any]:
    def fail(*arguments: object) -> None:
        raise error

    return fail


def on_all(comm: MPI.Intracomm, good: bool) -> bool:
    """Whether it is true on all ranks. Collective."""
    answer = np.array([good], np.int64)
    comm.Allreduce(MPI.IN_PLACE, answer, MPI.MIN)
    return bool(answer[0])
