"""Modules cut by tensor on real ranks, alone and in stages of a pipeline, against the uncut ones."""

import pytest
from mpi4py import MPI

import psgd
from psgd.kernels.errors import UsageError

torch = pytest.importorskip("torch")
from psgd.torch.pieces.crossings import OwnDraws  # noqa: E402
from psgd.torch.pieces.cut_heads import HeadsModule  # noqa: E402
from psgd.torch.pieces.cut_linears import ColumnModule, RowModule  # noqa: E402

nn = torch.nn


def close(found, wanted):
    return (found - wanted).abs().max() <= 1e-5 * wanted.abs().max().clamp(min=1e-30)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 13), nn.GELU(), nn.Dropout(0.0), nn.Linear(13, 8))

    def forward(self, x):
        z = self.norm(x)
        x = x + self.attention(z, z, z, need_weights=False)[0]
        return x + self.mlp(x)


def encoder():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 11, dropout=0.0, batch_first=True), 2)


def decoder():
    layer = nn.TransformerDecoderLayer(8, 2, 11, dropout=0.0, batch_first=True)

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x, x)

    return Both()


def stack():
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), Block(), Block(), nn.Linear(8, 3))


MAKE = {"stack": stack, "encoder": encoder, "decoder": decoder}


def make(kind):
    torch.manual_seed(6)
    return MAKE[kind]()


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("kind", MAKE)
def test_outputs_and_gradients_are_the_uncut_modules(comm, kind):
    whole, part = make(kind), psgd.torch.cut_by_tensor(make(kind), comm)
    torch.manual_seed(3)
    x = torch.randn(2, 5, 8)
    y, found = whole(x), part(x)
    assert close(found, y)
    weights = torch.randn_like(y)  # squares behind a LayerNorm would have a constant sum
    (y * weights).sum().backward()
    (found * weights).sum().backward()
    wanted, compared = dict(whole.named_parameters()), 0
    parts = dict(part.named_modules())
    for name, p in part.named_parameters():
        owner = parts[name.rpartition(".")[0]]
        if name not in wanted:  # query, key and value are one in the whole
            assert any(isinstance(parts[name[:at]], HeadsModule) for at in range(len(name)) if name[at] == ".")
            continue
        grad = wanted[name].grad
        if isinstance(owner, ColumnModule):
            grad = grad[owner.mine.start : owner.mine.stop]
        elif isinstance(owner, RowModule) and name.endswith("weight"):
            grad = grad[:, owner.mine.start : owner.mine.stop]
        else:
            assert len(set(comm.allgather(p.grad.numpy().tobytes()))) == 1, name
        assert close(p.grad, grad), name
        compared += 1
    assert compared >= 6
    whole.eval()
    part.eval()
    with torch.no_grad():
        assert close(part(x), whole(x))
    if kind == "encoder":
        padding = torch.zeros(2, 5, dtype=torch.bool)
        padding[1, 3:] = True
        y = whole(x, src_key_padding_mask=padding)  # with a graph: else PyTorch would warn of nested tensors
        with torch.no_grad():
            found = part(x, src_key_padding_mask=padding)
        assert close(found[0], y[0]) and close(found[1, :3], y[1, :3])
    shares = comm.allgather(sum(p.numel() for p in part.parameters()))
    assert comm.size == 1 or max(shares) < sum(p.numel() for p in whole.parameters())


def test_what_is_cut_and_what_stays():
    layers = nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.Dropout(), nn.Linear(6, 5), nn.Softmax(1), nn.Linear(5, 2)
    found = [type(each) for each in psgd.torch.cut_by_tensor(nn.Sequential(*layers), MPI.COMM_SELF)]
    assert found == [ColumnModule, nn.ReLU, RowModule, nn.Dropout, nn.Linear, nn.Softmax, nn.Linear]
    layers = nn.Linear(4, 6), nn.Dropout(), nn.Linear(6, 4)
    found = [type(each) for each in psgd.torch.cut_by_tensor(nn.Sequential(*layers), MPI.COMM_SELF)]
    assert found == [ColumnModule, OwnDraws, RowModule]
    tied = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    tied[2].weight = tied[0].weight
    for module in (tied, nn.Linear(3, 3), nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)), 3):
        with pytest.raises(UsageError, match="nothing to cut" if module != 3 else "expected a torch.nn.Module"):
            psgd.torch.cut_by_tensor(module, MPI.COMM_SELF)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("meta", [False, True])
def test_stages_of_modules_that_are_cut_by_tensor(comm, meta):
    place, part = divmod(comm.rank, 2)
    tensor, pipe = comm.Split(place, part), comm.Split(part, place)
    if meta:
        with torch.device("meta"):
            module = stack()
    else:
        module = make("stack")
    whole = make("stack")
    x, y = torch.randn(5, 4, 8, generator=torch.Generator().manual_seed(1)), torch.arange(20).reshape(5, 4) % 3

    def loss_of(output, labels):
        return nn.functional.cross_entropy(output.transpose(1, 2), labels)

    loss = loss_of(whole(x), y)
    loss.backward()
    psgd.torch.cut_by_tensor(module, tensor)
    with psgd.torch.pipeline(
        module, pipe, cuts=(3,), sample=(4, 8), batch=5, microbatches=3, loss=loss_of, seed=1
    ) as stages:
        found = stages.gradient(5, x, y)
        assert len(set(comm.allgather(found))) == 1
        views = stages.layout.views(stages.grads)
        if meta:
            assert 0.5 < found < 3
        else:
            assert found == pytest.approx(loss.item(), rel=1e-5)
            name = "4.weight" if place else "0.weight"
            assert close(torch.from_numpy(views[name]), dict(whole.named_parameters())[name].grad)
        shared = {n: v.tobytes() for n, v in views.items() if n in ("0.weight", "1.bias", "4.weight", "3.norm.weight")}
        assert shared and len({str(sorted(each.items())) for each in tensor.allgather(shared)}) == 1
    tensor.Free()
    pipe.Free()


@pytest.mark.ranks(2)
def test_dropout_of_what_all_ranks_have_is_the_same_and_between_the_halves_their_own(comm):
    torch.manual_seed(6)
    layers = nn.LayerNorm(8), nn.Dropout(0.5), nn.Linear(8, 13), nn.GELU(), nn.Dropout(0.5), nn.Linear(13, 8)
    module = psgd.torch.cut_by_tensor(nn.Sequential(*layers, nn.Dropout(0.5), nn.LayerNorm(8), nn.Linear(8, 3)), comm)
    kept = []
    x, y = torch.randn(6, 8, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 3
    with psgd.torch.pipeline(module, MPI.COMM_SELF, cuts=(), sample=(8,), batch=6, microbatches=2) as stages:
        hook = stages.module.get_submodule("4").register_forward_hook
        hook(lambda part, args, output: kept.append((output != 0)[:, :6].tolist()))
        losses = []
        for key in (1, 2, 1):
            losses.append(stages.gradient(6, x, y, key=key))
            views = stages.layout.views(stages.grads)
            for name in ("0.weight", "5.bias", "8.weight"):
                assert len(set(comm.allgather(views[name].tobytes()))) == 1, name
        assert losses[0] == losses[2] != losses[1] and len(set(comm.allgather(losses[0]))) == 1
    everyone = comm.allgather(kept[-1])
    assert everyone[0] != everyone[1]
