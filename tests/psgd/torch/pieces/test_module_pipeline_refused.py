"""What `psgd.torch.pipeline` refuses, and how failures end: alike on all ranks."""

import numpy as np
import pytest
from mpi4py import MPI

import psgd
from psgd.kernels.errors import ContractError, PeerLostError, UsageError

torch = pytest.importorskip("torch")
nn = torch.nn


def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 9), nn.GELU(), nn.Linear(9, 5))


def samples(n):
    return np.ones((n, 2, 3), np.float32), np.arange(n) % 5


class Odd(nn.Module):
    def forward(self, x):
        return x.sum()


class Summed(nn.Module):
    def forward(self, x):
        return x.sum(1, keepdim=True)


class Indices(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 6, sparse=True)

    def forward(self, x):
        return self.table(x.long()).sum(1)


def tied_on_a_rank():
    module = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))
    module[2].weight = module[0].weight
    return module


def init(layer):
    raise ValueError("no values")


ODD = {
    "sparse": lambda: nn.Sequential(Indices(), nn.Linear(6, 3)),
    "lazy": lambda: nn.Sequential(nn.LazyLinear(6), nn.Linear(6, 3)),
    "other on each rank": lambda: nn.Sequential(nn.Linear(6, 4 + MPI.COMM_WORLD.rank % 2), Summed(), nn.Linear(1, 3)),
    "tied on a rank": tied_on_a_rank,
    "no sequence": lambda: nn.Linear(2, 3),
    "one number": lambda: nn.Sequential(nn.Linear(6, 3), Odd()),
    "half": lambda: nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 2).half()),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"cuts": (6,)}, "so that no stage is empty"),
        ({"cuts": (2, 3)}, "expected 2 stages, or a multiple"),
        ({"cuts": (1,)}, "expected trainable parameters on each rank, got none on rank 0"),
        ({"sample": (7,)}, r"layer 1 \(Linear\): the trial on the meta device"),
        ({"sample": 6}, "sample: expected a tensor, or the shape"),
        ({"module": "no sequence"}, "expected a torch.nn.Sequential with layers, got Linear"),
        ({"module": "one number"}, "expected one tensor of 2 samples"),
        ({"module": "half"}, "all float32, or all float64, got"),
        ({"module": "tied on a rank", "cuts": (1, 2, 3), "sample": (6,)}, "each parameter in one stage of a rank, got"),
        ({"module": "sparse", "sample": (6,)}, "rank 0: 0.table: expected dense gradients, got Embedding"),
        ({"module": "lazy"}, "0.weight: expected a shape, got a lazy parameter"),
        ({"module": "other on each rank"}, "all ranks must pass the same module"),
        ({"loss": 3}, "expected a loss that can be called"),
        ({"schedule": "none"}, "none"),
    ],
)
def test_what_cannot_be_is_refused_on_all_ranks(comm, change, text):
    given = {"module": make(), "cuts": (3,), "sample": (2, 3), "batch": 4} | change
    if "module" in change:
        given |= {"sample": (6,), "cuts": (1,)} | change | {"module": ODD[change["module"]]()}
    with pytest.raises((UsageError, ContractError), match=text):
        psgd.torch.pipeline(given.pop("module"), comm, **given)


@pytest.mark.ranks(2)
def test_an_error_of_init_is_on_all_ranks(comm):
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    if comm.rank == 0:
        module = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    with pytest.raises(UsageError, match="on rank 1: ValueError: no values"):
        psgd.torch.pipeline(module, comm, cuts=(1,), sample=(6,), batch=4, init=init)


@pytest.mark.ranks(2)
def test_wrong_samples_and_moves_are_refused(comm):
    with psgd.torch.pipeline(make(), comm, cuts=(3,), sample=(2, 3), batch=4) as stages:
        with pytest.raises(UsageError, match="stay where they are"):
            stages.to("cuda")
        with pytest.raises(UsageError, match="expected 1 to 4 samples"):
            stages.gradient(5, *samples(5))


@pytest.mark.ranks(2)
def test_an_error_of_a_module_ends_the_other_rank_too(comm):
    def failing(output, labels):
        raise RuntimeError("no such loss")

    stages = psgd.torch.pipeline(make(), comm, cuts=(3,), sample=(2, 3), batch=4, loss=failing)
    with pytest.raises(RuntimeError if comm.rank else PeerLostError, match="no such loss" if comm.rank else "rank 1"):
        stages.gradient(4, *samples(4))
