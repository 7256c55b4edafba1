"""Attention by heads, against the whole one on one rank."""

import pytest

import psgd
from psgd.kernels.errors import UsageError

torch = pytest.importorskip("torch")
nn = torch.nn


def close(found, wanted):
    return (found - wanted).abs().max() <= 1e-5 * wanted.abs().max().clamp(min=1e-30)


def make(**options):
    torch.manual_seed(1)
    whole = nn.MultiheadAttention(12, 3, **options)
    with torch.no_grad():
        for p in whole.parameters():
            p.copy_(torch.randn_like(p) / 3)
    return whole


CASES = {
    "self": {},
    "tokens first": {"batch_first": False},
    "no bias": {"bias": False},
    "three tensors": {"kdim": 5, "vdim": 7},
}


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_are_the_wholes(comm, case):
    options = {"batch_first": True} | CASES[case]
    whole, part = make(**options), psgd.torch.cut_by_tensor(make(**options), comm)
    torch.manual_seed(3)
    widths = (12, 5, 7) if case == "three tensors" else (12,)
    tensors = [torch.randn(2, 4, width, requires_grad=True) for width in widths]
    copies = [x.detach().clone().requires_grad_() for x in tensors]
    mask = torch.ones(4, 4, dtype=torch.bool).triu(1) if options["batch_first"] else None
    padding = None
    if case == "self":
        padding = torch.zeros(2, 4, dtype=torch.bool)
        padding[0, 3] = True
    y, _ = whole(*(tensors * 3)[:3], attn_mask=mask, key_padding_mask=padding)
    found, weights = part(*(copies * 3)[:3], attn_mask=mask, key_padding_mask=padding)
    assert weights is None and close(found, y)
    y.square().sum().backward()
    found.square().sum().backward()
    for x, copy in zip(tensors, copies, strict=True):
        assert close(copy.grad, x.grad)
        assert len(set(comm.allgather(copy.grad.numpy().tobytes()))) == 1
    mine = slice(part.query.mine.start, part.query.mine.stop)
    whole_value = whole.v_proj_weight.grad if case == "three tensors" else whole.in_proj_weight.grad[24:]
    assert not part.heads or close(part.value.weight.grad, whole_value[mine])
    assert not part.heads or close(part.out.weight.grad, whole.out_proj.weight.grad[:, mine])
    if case != "no bias":
        assert close(part.out.bias.grad, whole.out_proj.bias.grad)


@pytest.mark.ranks(2)
def test_one_sample_a_mask_for_each_head_and_dropout(comm):
    whole, part = make(batch_first=True), psgd.torch.cut_by_tensor(make(batch_first=True), comm)
    torch.manual_seed(3)
    x, mask = torch.randn(2, 4, 12), torch.randn(6, 4, 4)
    assert close(part(x, x, x, attn_mask=mask)[0], whole(x, x, x, attn_mask=mask)[0])
    assert close(part(x[0], x[0], x[0])[0], whole(x[0], x[0], x[0])[0])
    part.dropout = 0.5
    state = torch.get_rng_state()
    assert not torch.equal(part(x, x, x)[0], part(x, x, x)[0])
    assert not torch.equal(state, torch.get_rng_state())
    assert len(set(comm.allgather(torch.rand(2).numpy().tobytes()))) == 1


@pytest.mark.ranks(2)
def test_values_of_what_was_nowhere(comm):
    with torch.device("meta"):
        described = nn.MultiheadAttention(12, 3)
    part = psgd.torch.cut_by_tensor(described, comm)
    part.to_empty(device="cpu")
    torch.manual_seed(5)
    part.reset_parameters()
    bound = (6 / 48) ** 0.5
    assert bound / 2 < part.query.weight.abs().max() <= bound and (part.out.bias == 0).all()


@pytest.mark.ranks(2)
def test_what_cannot_be_cut_is_refused(comm):
    with pytest.raises(UsageError, match="without add_bias_kv"):
        psgd.torch.cut_by_tensor(nn.MultiheadAttention(12, 3, add_bias_kv=True), comm)
