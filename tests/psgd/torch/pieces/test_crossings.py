"""Sums one way, nothing the other way; random numbers apart."""

import pytest

from psgd import collectives

torch = pytest.importorskip("torch")
from psgd.torch.pieces.crossings import OwnDraws, enter, leave, own_draws  # noqa: E402


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_what_is_summed_and_what_is_not(comm, dtype):
    ours, dtype = collectives.Communicator(comm), getattr(torch, dtype)
    x = torch.arange(6.0).reshape(2, 3).to(dtype).requires_grad_()
    y = enter(x, ours)
    assert torch.equal(y, x)
    weight = torch.full((2, 3), float(comm.rank + 1), dtype=dtype)
    (y * weight).sum().backward()
    assert (x.grad == comm.size * (comm.size + 1) / 2).all() and x.grad.dtype == dtype
    z = torch.full((2, 3), float(comm.rank + 1), dtype=dtype, requires_grad=True)
    total = leave(z.T, ours)
    assert (total == comm.size * (comm.size + 1) / 2).all() and total.shape == (3, 2)
    (2 * total).sum().backward()
    assert (z.grad == 2).all() and (z == comm.rank + 1).all()
    assert leave(z.detach().to("meta"), ours).is_meta


@pytest.mark.ranks(2)
def test_random_numbers_are_apart_and_the_generator_goes_on_alike(comm):
    ours = collectives.Communicator(comm)
    torch.manual_seed(1)
    with own_draws(ours, torch.zeros(1)):
        first = torch.rand(10 + comm.rank)[:10]
    found = comm.allgather((first.tolist(), torch.rand(3).tolist()))
    assert found[0][0] != found[1][0] and found[0][1] == found[1][1]
    module, x = OwnDraws(torch.nn.Dropout(0.5), ours), torch.ones(64)
    found = comm.allgather(module(x).tolist())
    assert found[0] != found[1]
    assert torch.equal(module.eval()(x), x)
