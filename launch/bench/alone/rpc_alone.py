"""PyTorch's RPC alone: `rpc_alone.py BYTES,BYTES,..` prints the seconds of a push and pull by size, as JSON."""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import multiprocessing
from torch.distributed import rpc

PARAMS: dict[int, torch.Tensor] = {}


def update(grads: torch.Tensor) -> torch.Tensor:
    """On the server: a step of SGD, answered with the parameters."""
    params = PARAMS.setdefault(grads.numel(), torch.zeros_like(grads))
    params.sub_(grads, alpha=0.25)
    return params


def main(rank: int, sizes: list[int], folder: str) -> None:
    """Process 0 is the server."""
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=1, init_method=Path(folder, "meet").as_uri())
    rpc.init_rpc(("server", "worker")[rank], rank=rank, world_size=2, rpc_backend_options=options)
    found = {}
    for nbytes in sizes if rank else ():
        grads, seconds = torch.ones(nbytes // 4), []
        for _ in range(300 if nbytes <= 1 << 20 else 20):
            start = time.perf_counter()
            rpc.rpc_sync("server", update, args=(grads,))
            seconds.append(time.perf_counter() - start)
        found[nbytes] = statistics.median(seconds)
    if rank:
        print(json.dumps(found), flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(main, ([int(text) for text in sys.argv[1].split(",")], folder), nprocs=2)
