"""Which parameters have a place in the vector, and which modules are refused."""

import pytest

from psgd.kernels.errors import UsageError

torch = pytest.importorskip("torch")
nn = torch.nn


def find(module):
    from psgd.torch.parameters import find

    return find(module)


def test_order_is_that_of_the_module_and_ties_have_one_place():
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3), nn.Linear(3, 2))
    module[2].weight = module[0].weight
    module[1].bias.requires_grad_(False)
    slots, layout, dtype = find(module)
    assert [slot.name for slot in slots] == ["0.weight", "0.bias", "1.weight", "2.bias"]
    assert layout.tied == (("2.weight", "0.weight"),) and dtype == torch.float32
    assert [(p.offset, p.shape) for p in layout.parameters] == [(0, (2, 3)), (16, (2,)), (32, (3, 2)), (48, (2,))]
    assert len(slots[0].places) == 2


def test_the_vector_is_float64_only_where_all_are():
    assert find(nn.Linear(2, 2).double())[2] == torch.float64
    assert find(nn.Linear(2, 2).half())[2] == torch.float32
    with pytest.raises(UsageError, match="expected float64 in all trainable parameters or none"):
        find(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))


def shared():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = nn.Parameter(module[0].weight.data)
    return module


def with_parameter(parameter):
    module = nn.Linear(2, 2)
    module.more = parameter
    return module


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (nn.ReLU, "expected a module with trainable parameters"),
        (
            lambda: nn.Linear(2, 2, device="meta"),
            "weight: expected all parameters on the CPU or on one GPU, got meta: make the module without the meta",
        ),
        (lambda: nn.LazyLinear(2), "weight: expected a shape, got a lazy parameter"),
        (lambda: with_parameter(nn.Parameter(torch.zeros(2, dtype=torch.complex64))), "more: expected real numbers"),
        (lambda: with_parameter(nn.Parameter(torch.zeros(0))), r"more: expected elements, got shape \(0,\)"),
        (lambda: nn.Sequential(nn.Embedding(4, 2, sparse=True)), "0: expected dense gradients, got Embedding"),
        (shared, "1.weight: expected memory of its own, got that of 0.weight"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_what_cannot_be_trained_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        find(make())
