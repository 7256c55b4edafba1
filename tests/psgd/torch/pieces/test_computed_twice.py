"""Layers that are computed twice: the same bits, statistics that move once, and less kept between the passes."""

import numpy as np
import pytest

import psgd
from psgd import collectives
from psgd.kernels.errors import UsageError

torch = pytest.importorskip("torch")
from psgd.torch.pieces import computed_twice  # noqa: E402 -- where PyTorch is

nn = torch.nn


class Block(nn.Sequential):
    """Keeps much inside, and little at its ends."""

    def __init__(self):
        super().__init__(
            nn.Linear(6, 48), nn.BatchNorm1d(48), nn.ReLU(inplace=True), nn.Dropout(0.4), nn.Linear(48, 6), nn.Tanh()
        )


class Pair(nn.Sequential):
    """As `Block`, to be cut by tensor."""

    def __init__(self):
        super().__init__(nn.Linear(6, 47), nn.ReLU(inplace=True), nn.Dropout(0.4), nn.Linear(47, 6), nn.Tanh())


def make(kind=Block):
    torch.manual_seed(0)
    return nn.Sequential(nn.ReLU(inplace=True), *(kind() for _ in range(3)), nn.Linear(6, 5))


def kept(modules, segments, x):
    """Bytes that autograd has between the passes, and what both passes leave."""
    storages = {}
    own = {p.untyped_storage().data_ptr() for m in modules for p in m.parameters()}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage
        return tensor

    torch.manual_seed(5)
    given = x.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        y = computed_twice.forward(modules, segments, given * 1)
    torch.rand(7)  # the generator is elsewhere when backward begins
    y.square().sum().backward()
    left = [given.grad, y.detach(), *(p.grad for m in modules for p in m.parameters())]
    left += [b.clone() for m in modules for b in m.buffers()]
    return sum(each.nbytes() for each in storages.values()), left


@pytest.mark.parametrize("size", [1, 2, 5])
def test_bits_and_statistics_are_those_of_one_pass(size):
    x = torch.randn(8, 6)
    plain, twice = list(make()), list(make())
    found, left = kept(twice, computed_twice.segments(twice, x.to("meta"), str(size)), x)
    wanted, there = kept(plain, (), x)
    assert found < wanted
    assert all(map(torch.equal, left, there))
    with torch.no_grad():
        assert not computed_twice.forward(twice, (range(5),), x).requires_grad


def test_what_is_chosen():
    modules, x = list(make()), torch.empty(8, 6, device="meta", requires_grad=True)
    chosen = computed_twice.segments(modules, x, "all")
    assert chosen == (range(1, 2), range(2, 3), range(3, 4)), "the others keep no more than their input"
    few = computed_twice.segments(modules, x, "20000B")
    assert 0 < len(few) < 4
    assert computed_twice.segments(modules, x, "1GB") == ()
    with pytest.raises(UsageError, match="activations need"):
        computed_twice.segments(modules, x, "10B")
    assert all(p.grad is None and not p.is_meta for m in modules for p in m.parameters())


@pytest.mark.ranks(2)
def test_a_pipeline_and_a_cut_by_tensor_have_the_same_bits(comm):
    def trained(recompute, tensor):
        module = make(Pair if tensor else Block)
        if tensor:
            ours = collectives.Communicator(comm)
            psgd.torch.cut_by_tensor(module, ours)
        pipe = comm.Split(comm.rank) if tensor else comm
        options = {"cuts": () if tensor else (2,), "sample": (6,), "batch": 8, "microbatches": 2}
        with psgd.torch.pipeline(module, pipe, recompute=recompute, **options) as stages:
            for step in range(3):
                rng = np.random.default_rng(step)
                x, y = rng.standard_normal((8, 6)).astype(np.float32), rng.integers(0, 5, 8)
                loss = stages.gradient(8, x, y)
                stages.params[:] -= np.float32(0.1) * stages.grads
            found = loss, stages.params.copy(), [b.clone() for b in stages.module.buffers()]
        if tensor:
            pipe.Free()
            ours.free()
        return found

    for tensor in (False, True):
        loss, params, buffers = trained(None, tensor)
        for recompute in ("all", "2"):
            again, found, there = trained(recompute, tensor)
            assert again == loss and np.array_equal(params, found)
            assert all(map(torch.equal, buffers, there))
    with pytest.raises(UsageError, match="recompute 1B: activations need"):
        trained("1B", tensor=False)
