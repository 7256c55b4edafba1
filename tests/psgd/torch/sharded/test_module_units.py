"""What of a module is whole at once."""

import re

import pytest

from psgd.kernels.errors import UsageError

torch = pytest.importorskip("torch")
from harness import torch_sharded as cases  # noqa: E402

from psgd.torch import parameters  # noqa: E402
from psgd.torch.sharded.module_units import plan  # noqa: E402


def planned(module, asked=None):
    slots, layout, _ = parameters.find(module)
    return plan(module, slots, layout.size, asked), layout.size


@pytest.mark.parametrize("kind", cases.KINDS)
def test_units_cover_the_vector_and_hold_each_parameter_once(kind):
    module = cases.made(kind)
    found, size = planned(module)
    assert [i for unit in found.units for i in unit.part] == list(range(size))
    names = [slot.name for unit in found.units for slot in unit.slots]
    assert names == [name for name, p in module.named_parameters() if p.requires_grad]
    for unit in found.units:
        assert all(unit.part.start <= slot.offset < slot.stop <= unit.part.stop for slot in unit.slots)


def test_members_of_containers_are_blocks_and_the_rest_are_runs_between_them():
    found, _ = planned(cases.made("resnet"))
    assert [unit.owner for unit in found.units] == ["", "blocks.0", "blocks.1", ""]
    assert found.owners == {"": (0, 3), "blocks.0": (1,), "blocks.1": (2,)}
    assert found.users["stem"] == (0,) and found.users["blocks.0.norms.0"] == (1,)


def test_a_tied_weight_belongs_to_the_unit_that_has_its_first_name():
    found, _ = planned(cases.made("encoder"))
    assert found.users["head"] == found.users["embed"] == (0,)
    assert [unit.owner for unit in found.units][1:4] == [f"layers.layers.{i}" for i in range(3)]
    tied = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    assert planned(tied)[0].owners == {"": (), "0": (0,), "1": (0, 1)}


def test_units_by_names_classes_and_a_function():
    module = cases.made("encoder")
    by_name = planned(module, ["layers.layers.*.self_attn", "layers.layers.?"])[0]
    attention = next(unit for unit in by_name.units if unit.owner == "layers.layers.0.self_attn")
    assert attention.index in by_name.owners["layers.layers.0.self_attn"]
    assert attention.index not in by_name.owners["layers.layers.0"], "the innermost block has it"
    by_class = planned(module, [torch.nn.TransformerEncoderLayer])[0]
    by_function = planned(module, lambda name, part: isinstance(part, torch.nn.TransformerEncoderLayer))[0]
    assert by_class.owners == by_function.owners == planned(module)[0].owners
    assert planned(module, [])[0].owners == {"": (0,)}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("layers", "expected a list"),
        (torch.nn.Linear, "expected a list"),
        (["layer.*"], "'layer.*', which matches none"),
        ([torch.nn.LSTM], "'LSTM', which matches none"),
        ([3], "names of modules and classes, got 3"),
    ],
)
def test_what_names_no_units_is_refused(asked, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        planned(cases.made("encoder"), asked)
