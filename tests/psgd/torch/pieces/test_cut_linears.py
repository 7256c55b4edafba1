"""Linear modules in parts, against the whole ones on one rank."""

import pytest

import psgd
from psgd import collectives
from psgd.kernels.errors import UsageError

torch = pytest.importorskip("torch")
nn = torch.nn


def close(found, wanted):
    return (found - wanted).abs().max() <= 1e-5 * wanted.abs().max().clamp(min=1e-30)


class Pair(nn.Module):
    def __init__(self, first, last):
        super().__init__()
        self.first, self.last = first, last

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize(("hidden", "unit"), [(12, 1), (7, 1), (3, 1), (6, 3), (2, 2)])
@pytest.mark.parametrize("bias", [True, False])
def test_pairs_have_the_gradients_of_the_whole(comm, hidden, unit, bias):
    torch.manual_seed(2)
    whole = nn.Sequential(*(Pair(nn.Linear(5, hidden, bias), nn.Linear(hidden, 5, bias)) for _ in range(2)))
    ours = collectives.Communicator(comm)
    torch.manual_seed(2 + comm.rank)  # the first rank's values are all ranks'
    parts = nn.Sequential(*(Pair(nn.Linear(5, hidden, bias), nn.Linear(hidden, 5, bias)) for _ in range(2)))
    for part in parts:
        part.first = psgd.torch.column_linear(part.first, ours, unit=unit)
        part.last = psgd.torch.row_linear(part.last, ours, unit=unit)
    torch.manual_seed(9)
    x = torch.randn(4, 3, 5)
    y, found = whole(x), parts(x)
    assert close(found, y)
    y.square().sum().backward()
    found.square().sum().backward()
    for pair, part in zip(whole, parts, strict=True):
        mine = slice(part.first.mine.start, part.first.mine.stop)
        cuts = [(part.first.weight, pair.first.weight.grad[mine]), (part.last.weight, pair.last.weight.grad[:, mine])]
        if bias:
            cuts += [(part.first.bias, pair.first.bias.grad[mine]), (part.last.bias, pair.last.bias.grad)]
            assert len(set(comm.allgather(part.last.bias.grad.numpy().tobytes()))) == 1
        for p, wanted in cuts:
            assert p.requires_grad == (p.numel() > 0)
            assert not p.numel() or close(p.grad, wanted)
    assert sum(comm.allgather(parts[0].first.weight.numel())) == 5 * hidden
    wrapped = psgd.torch.wrap(parts) if bias or mine.start < mine.stop else None
    assert wrapped is None or wrapped.layout.size


@pytest.mark.ranks(3)
def test_values_drawn_in_parts_are_those_of_the_whole(comm):
    torch.manual_seed(4)
    whole = nn.Linear(4, 7)
    with torch.device("meta"):
        described = nn.Linear(4, 7)
    for make, axis in ((psgd.torch.column_linear, 0), (psgd.torch.row_linear, 1)):
        part = make(described, comm)
        assert part.weight.is_meta
        part.to_empty(device="cpu")
        torch.manual_seed(4)
        part.reset_parameters()
        assert torch.equal(part.weight, whole.weight.narrow(axis, part.mine.start, len(part.mine)))
        bias = whole.bias if axis else whole.bias[part.mine.start : part.mine.stop]
        assert torch.equal(part.bias, bias)


@pytest.mark.ranks(2)
def test_what_cannot_be_cut_is_refused_on_all_ranks(comm):
    with pytest.raises(UsageError, match=r"expected a torch\.nn\.Linear, got ReLU"):
        psgd.torch.column_linear(nn.ReLU(), comm)
    with pytest.raises(UsageError, match="unit: expected a divisor of 6, got 4"):
        psgd.torch.row_linear(nn.Linear(6, 8), comm, unit=4)
    with pytest.raises(psgd.kernels.errors.ContractError, match="all ranks must pass the same linear"):
        psgd.torch.row_linear(nn.Linear(6 + comm.rank, 8), comm)
