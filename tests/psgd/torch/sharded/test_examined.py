"""What cannot be sharded is refused on all ranks, before any of them has changed its module."""

import pytest

import psgd
from psgd.kernels.errors import ContractError, UsageError

torch = pytest.importorskip("torch")
nn = torch.nn


def module():
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))


def mixed():
    with torch.device("meta"):
        one = module()
    one[0] = nn.Linear(3, 3)
    return one


@pytest.mark.ranks(2, timeout=120)
def test_what_cannot_be_sharded(comm):
    sharded = psgd.torch.shard(taken := module(), comm)
    for given, options, message in (
        (module(), {"stage": 4}, "expected 1, 2 or 3, got 4"),
        (module(), {"stage": True}, "expected 1, 2 or 3, got True"),
        (module(), {"accumulate": 0}, "accumulate: expected a whole number"),
        (module(), {"units": ["nowhere"]}, "'nowhere', which matches none"),
        (module(), {"buffers": "some"}, "buffers"),
        (3, {}, "expected a torch.nn.Module, got int"),
        (mixed(), {}, "on the meta device, or none"),
        (taken, {}, "is part of a sharded module already"),
    ):
        for here in (comm.rank == 1, True):  # the other rank is told as well
            with pytest.raises(UsageError, match=message):
                psgd.torch.shard(given if here else module(), comm, **options if here else {})
    for options, message in (
        ({"seed": comm.rank}, "same seed, got 0 on"),
        ({"stage": 2 + comm.rank}, "same stage, got 2 on"),
        ({"units": [["0"], ["1"]][comm.rank]}, "same units"),
    ):
        with pytest.raises(ContractError, match=message):
            psgd.torch.shard(one := module(), comm, **options)
        assert one(torch.ones(1, 3)).isfinite().all()
    with pytest.raises(UsageError, match=r"is part of a sharded module already: hand what psgd\.torch\.shard"):
        psgd.torch.wrap(taken)
    optimizer = torch.optim.Adam(sharded.module.parameters())
    with pytest.raises(UsageError, match="module: expected one that is not sharded"):
        psgd.torch.DistributedOptimizer(optimizer, comm, module=sharded, strategy="allreduce")
    for options, message in (
        ({"strategy": "sync"}, "strategy allreduce"),
        ({"strategy": "allreduce", "accumulate": 2}, "expected accumulate=1"),
        ({"strategy": "allreduce", "compress": "topk"}, "compress"),
    ):
        with pytest.raises(UsageError, match=message), psgd.connect(comm, sharded, **options):
            pass
    sharded.close()
    with pytest.raises(UsageError, match="the sharded module was closed"):
        psgd.connect(comm, sharded, strategy="allreduce")
