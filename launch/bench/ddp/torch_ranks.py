"""PyTorch's process group over the ranks of a benchmark."""

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

import torch
from mpi4py import MPI
from torch import distributed as dist

from psgd.launch.bench.peers.gloo_process import store


@contextlib.contextmanager
def process_group(comm: MPI.Intracomm, backend: str) -> Iterator[None]:
    """Makes a group of all ranks the default one, with one thread a rank; ends it after a block without an error.

    Collective, blocks.

    Args:
        comm: the ranks.
        backend: "gloo", or "nccl" with this rank's GPU as PyTorch's current one.
    """
    torch.set_num_threads(1)
    if len(set(comm.allgather(socket.gethostname()))) == 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    host = comm.bcast("127.0.0.1" if "GLOO_SOCKET_IFNAME" in os.environ else socket.gethostname(), 0)
    kept = store(host, 0, comm.size, True) if comm.rank == 0 else None
    port = comm.bcast(kept.port if kept is not None else 0, 0)
    kept = kept or store(host, port, comm.size, False)
    gpu: dict[str, Any] = {"device_id": torch.device("cuda", torch.cuda.current_device())} if backend == "nccl" else {}
    dist.init_process_group(backend, store=kept, rank=comm.rank, world_size=comm.size, **gpu)
    try:
        yield
        comm.Barrier()
    finally:
        dist.destroy_process_group()
