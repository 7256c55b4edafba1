"""A PyTorch module trained by psgd: two classes of points, a perceptron with BatchNorm.

    mpirun -n 2 python examples/torch_mlp.py            # 2 workers, all-reduce
    mpirun -n 3 python examples/torch_mlp.py async      # 1 server, 2 workers

The first command prints: allreduce on 2 ranks: 0.96 of the points are classified correctly
"""

import sys

import torch
from mpi4py import MPI
from torch.nn import BatchNorm1d, Linear, ReLU, Sequential
from torch.nn.functional import cross_entropy

import psgd


def main() -> None:
    psgd.abort_on_exception()
    torch.set_num_threads(1)
    strategy = sys.argv[1] if len(sys.argv) > 1 else "allreduce"
    torch.manual_seed(0)  # the same points on every rank; each worker reads only its own
    x = torch.randn(2048, 2)
    y = (x.norm(dim=1) > 1.2).long()

    module = Sequential(Linear(2, 32), BatchNorm1d(32), ReLU(), Linear(32, 2))
    model = psgd.torch.wrap(module)
    with psgd.connect(MPI.COMM_WORLD, model, strategy=strategy, lr=0.2) as ps:
        for _ in range(20):
            for rows in torch.arange(ps.worker, len(x), ps.workers).split(32):
                module.zero_grad()
                loss = cross_entropy(module(x[rows]), y[rows])
                ps.overlap(len(rows))
                loss.backward()
                ps.step(samples=len(rows), loss=loss.item())

    if ps.is_main:
        right = (module.eval()(x).argmax(dim=1) == y).double().mean().item()
        ranks = MPI.COMM_WORLD.size
        print(f"{strategy} on {ranks} ranks: {right:.2f} of the points are classified correctly", flush=True)


if __name__ == "__main__":
    main()
