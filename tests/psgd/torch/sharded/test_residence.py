"""Parameters that are whole, or nowhere."""

import pytest

torch = pytest.importorskip("torch")
from psgd.torch import parameters  # noqa: E402
from psgd.torch.sharded.module_units import plan  # noqa: E402
from psgd.torch.sharded.residence import Residence, saved  # noqa: E402


def home(dtype=None):
    module = torch.nn.Linear(3, 5)
    if dtype is not None:
        module.bias.data = module.bias.data.to(dtype)
    slots, layout, _ = parameters.find(module)
    return module, Residence(plan(module, slots, layout.size).units[0]), layout.size


def test_parameters_are_views_or_read_as_nan_in_their_shape_without_memory():
    module, residence, size = home()
    values = torch.arange(float(size))
    residence.enter(values)
    assert torch.equal(module.weight, torch.arange(15.0).view(5, 3))
    assert module.weight.untyped_storage().data_ptr() == values.data_ptr()
    residence.leave()
    assert module.weight.shape == (5, 3) and module.weight.isnan().all() and module.weight.requires_grad
    assert sum(p.untyped_storage().nbytes() for p in module.parameters()) == 8
    assert residence.places() == {}


def test_a_saved_view_is_the_same_view_of_other_memory():
    _, residence, size = home()
    first, second = torch.arange(float(size)), torch.arange(float(size)) + 100
    residence.enter(first)
    view = first[:15].view(5, 3).t()[1:]
    kept = saved(view, residence.places()[first.data_ptr()])
    residence.leave()
    residence.enter(second)
    again = residence.restored(kept)
    assert torch.equal(again, view + 100) and again.stride() == view.stride()
    assert again.untyped_storage().data_ptr() == second.data_ptr()


def test_parameters_of_few_bits_are_rounded_from_the_elements():
    module, residence, size = home(torch.bfloat16)
    values = torch.full((size,), 1 + 2.0**-12)
    residence.enter(values)
    assert module.bias.dtype == torch.bfloat16 and (module.bias == 1).all()
    (address,) = set(residence.places()) - {values.data_ptr()}
    assert address == module.bias.data_ptr()
    kept = saved(module.bias.detach()[2:], residence.places()[address])
    values.fill_(3)
    residence.round()
    assert (module.bias == 3).all() and torch.equal(residence.restored(kept), module.bias.detach()[2:])
    residence.leave()
    assert module.bias.isnan().all() and module.bias.dtype == torch.bfloat16
