"""Names and places of a rank's tensors in the state dict of the whole."""

import pytest

import psgd

torch = pytest.importorskip("torch")
from psgd.torch.pieces.whole_state import pieces  # noqa: E402 -- where PyTorch is

nn = torch.nn


class Attends(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.heads = nn.MultiheadAttention(6, 3, **options)


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("options", [{}, {"kdim": 4, "vdim": 5}, {"bias": False}])
def test_parts_together_are_the_whole(comm, options):
    torch.manual_seed(1)
    block = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3), nn.BatchNorm1d(3))
    block[0].weight.requires_grad = False
    module = nn.ModuleDict({"a": Attends(**options), "b": block})
    wanted = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    mine = pieces(psgd.torch.cut_by_tensor(module, comm))
    if comm.size > 1:
        assert any(each.tensor.shape != each.shape for each in mine)
    found = {name: torch.full_like(tensor, -1) for name, tensor in wanted.items()}
    for rank in comm.allgather([(each.name, each.shape, each.start, each.tensor.numpy()) for each in mine]):
        for name, shape, start, values in rank:
            assert shape == tuple(wanted[name].shape)
            place = tuple(slice(at, at + extent) for at, extent in zip(start, values.shape, strict=True))
            found[name][place] = torch.as_tensor(values)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
