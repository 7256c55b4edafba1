"""Gloo alone: `gloo_alone.py RANKS BYTES,BYTES,..` prints the seconds of an all-reduce by size, as JSON."""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import distributed, multiprocessing


def main(rank: int, ranks: int, sizes: list[int], folder: str) -> None:
    """One process: the median over the rounds of the slowest rank's time."""
    torch.set_num_threads(1)
    meeting = Path(folder, "meet").as_uri()
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    found = {}
    for nbytes in sizes:
        source, seconds = torch.ones(nbytes // 4), []
        vector = torch.empty_like(source)
        for _ in range(200 if nbytes <= 1 << 20 else 20):
            vector.copy_(source)
            distributed.barrier()
            start = time.perf_counter()
            distributed.all_reduce(vector)
            took = torch.tensor([time.perf_counter() - start])
            distributed.all_reduce(took, distributed.ReduceOp.MAX)
            seconds.append(took.item())
        found[nbytes] = statistics.median(seconds)
    if rank == 0:
        print(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        wanted = int(sys.argv[1]), [int(text) for text in sys.argv[2].split(",")], folder
        multiprocessing.spawn(main, wanted, nprocs=wanted[0])
