"""PyTorch's process group among the ranks of a test."""

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def process_group(comm: Any, folder: Any, rank: int | None = None, name: str = "meet") -> Iterator[None]:
    """Gloo among a communicator's ranks, within the block; PyTorch uses one thread.

    Args:
        comm: mpi4py's.
        folder: that all ranks see.
        rank: this process's in the group, if not that in `comm`.
        name: of the file where they meet, new for each group.
    """
    import torch
    from torch import distributed as dist

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    path = comm.bcast(f"{folder}/{name}", 0)
    mine = comm.rank if rank is None else rank
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=mine, world_size=comm.size)
    try:
        yield
        comm.Barrier()  # who leaves first does not break the others' connections
    finally:
        dist.destroy_process_group()
        torch.set_num_threads(threads)
