"""A PyTorch loop that exists already, made distributed: AdamW, a scheduler, clipping, GradScaler and autocast stay.

    mpirun -n 3 python examples/torch_optimizer.py               # 1 server, 2 workers, stale synchronous
    mpirun -n 2 python examples/torch_optimizer.py allreduce     # 2 workers, all-reduce

The second command prints: allreduce on 2 ranks: 0.99 of the points are classified correctly
"""

import sys

import torch
from mpi4py import MPI
from torch.nn import Linear, ReLU, Sequential
from torch.nn.functional import cross_entropy

import psgd


def main() -> None:
    psgd.abort_on_exception()
    torch.set_num_threads(1)
    strategy = sys.argv[1] if len(sys.argv) > 1 else "ssp"
    torch.manual_seed(0)  # the same points on every rank; each worker reads only its own
    x = torch.randn(2048, 2)
    y = (x.norm(dim=1) > 1.2).long()

    model = Sequential(Linear(2, 32), ReLU(), Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer = psgd.torch.DistributedOptimizer(optimizer, MPI.COMM_WORLD, module=model, strategy=strategy)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8 * 2048 // 64)
    scaler = torch.amp.GradScaler("cpu")
    with optimizer:
        for _ in range(8):
            for rows in torch.arange(optimizer.worker, len(x), optimizer.workers).split(32):
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16):
                    loss = cross_entropy(model(x[rows]), y[rows])
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer, samples=len(rows))
                scaler.update()
                scheduler.step()

    if optimizer.is_main:
        right = (model(x).argmax(dim=1) == y).double().mean().item()
        ranks = MPI.COMM_WORLD.size
        print(f"{strategy} on {ranks} ranks: {right:.2f} of the points are classified correctly", flush=True)


if __name__ == "__main__":
    main()
