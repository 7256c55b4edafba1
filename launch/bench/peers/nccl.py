"""NCCL's all-reduce as a peer: called through CuPy, with no framework in between, and through PyTorch."""

import contextlib
import ctypes
import socket
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from psgd.launch.bench.peers.gloo import on_all
from psgd.launch.bench.peers.processes import TIMEOUT_S

_OPS = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX", "mean": "AVG"}
_TYPES = {"float32": "FLOAT32", "float64": "FLOAT64", "float16": "FLOAT16", "int8": "INT8", "int32": "INT32"}


def _one_gpu_each(comm: MPI.Intracomm) -> bool:
    """Whether no two ranks of a node share a GPU, which NCCL refuses."""
    import cupy

    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    uuids = node.allgather(bytes(cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["uuid"]))
    node.Free()
    return on_all(comm, len(set(uuids)) == len(uuids))


class Nccl:
    """A communicator of NCCL on all ranks."""

    def __init__(self, communicator: Any, nccl: Any) -> None:
        self._communicator = communicator
        self._nccl = nccl

    @classmethod
    def start(cls, comm: MPI.Intracomm) -> "Nccl | None":
        """None on all ranks where CuPy finds no NCCL or ranks share a GPU. Collective."""
        nccl = _load()
        if not on_all(comm, nccl is not None) or not _one_gpu_each(comm):
            return None
        assert nccl is not None
        identity = comm.bcast(nccl.get_unique_id() if comm.rank == 0 else None, 0)
        return cls(nccl.NcclCommunicator(comm.size, identity, comm.rank), nccl)

    def allreduce(self, vector: Any, op: str) -> None:
        """In place, on the current stream; does not wait."""
        import cupy

        kind = getattr(self._nccl, f"NCCL_{_TYPES[vector.dtype.name]}")
        operation = getattr(self._nccl, f"NCCL_{_OPS[op]}", 4)  # 4: the mean, which CuPy does not name
        pointer, stream = vector.data.ptr, cupy.cuda.get_current_stream().ptr
        self._communicator.allReduce(pointer, pointer, vector.size, kind, operation, stream)

    def close(self) -> None:
        """Ends it. Collective."""
        self._communicator.destroy()


def _load() -> Any:
    """CuPy's NCCL, with the library that PyTorch brings where there is no other; None without."""
    for path in (Path(folder) / "nvidia" / "nccl" / "lib" / "libnccl.so.2" for folder in sys.path):
        if path.exists():
            try:
                ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
            except OSError:
                continue
            break
    try:
        from cupy.cuda import nccl

        nccl.get_version()
    except (ImportError, AttributeError):
        return None
    return nccl


class TorchNccl:
    """PyTorch's process group on all ranks."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    @classmethod
    def start(cls, comm: MPI.Intracomm) -> "TorchNccl | None":
        """None on all ranks where PyTorch, its NCCL, or a GPU for each rank is missing. Collective."""
        try:
            import torch
            import torch.distributed as dist

            able = torch.cuda.is_available() and dist.is_nccl_available()
        except ImportError:
            able = False
        if not on_all(comm, able) or not _one_gpu_each(comm):
            return None
        import cupy

        device = torch.device("cuda", cupy.cuda.Device().id)
        torch.cuda.set_device(device)
        store = meet(comm, socket.gethostname())
        if not on_all(comm, store is not None):
            return None
        dist.init_process_group("nccl", store=store, rank=comm.rank, world_size=comm.size, device_id=device)
        return cls(torch)

    def call(self, vector: Any, op: str) -> Callable[[], object]:
        """The all-reduce of a vector, in place, on the default stream."""
        torch = self._torch
        tensor = torch.as_tensor(vector, device="cuda")
        operation = getattr(torch.distributed.ReduceOp, _OPS[op])
        # Both libraries' default stream is CUDA's.
        return lambda: torch.distributed.all_reduce(tensor, operation, async_op=True).wait()

    def close(self) -> None:
        """Ends it. Collective."""
        self._torch.distributed.destroy_process_group()


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
