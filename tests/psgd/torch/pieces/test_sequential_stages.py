"""The description of a sequence: shapes by a trial that changes nothing, names, ties."""

import pytest

from psgd.kernels.errors import UsageError

torch = pytest.importorskip("torch")
from psgd.torch.pieces.sequential_stages import SequentialStages  # noqa: E402

nn = torch.nn
LOSS = nn.functional.cross_entropy


def test_shapes_and_names_of_the_whole():
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 5))
    module[3].bias.requires_grad = False
    before = {name: value.clone() for name, value in module.state_dict().items()}
    whole = SequentialStages(module, (1, 8, 8), LOSS)
    assert whole.shapes == ((1, 8, 8), (4, 6, 6), (4, 6, 6), (144,)) and whole.output_shape == (5,)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    stage = whole.cut(1, 4)
    assert [p.name for p in stage.layout.parameters] == ["1.weight", "1.bias", "3.weight"]
    assert whole.cut(0, 2).output_shape == (4, 6, 6)


def test_ties_in_a_stage_and_between_stages():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    module[2].weight = module[0].weight
    whole = SequentialStages(module, (3,), LOSS)
    assert whole.cut(0, 3).layout.tied == (("2.weight", "0.weight"),)
    assert whole.cut(1, 3).names_in_whole["2.weight"] == "0.weight"
    assert whole.layout().tied == (("2.weight", "0.weight"),) and len(whole.layout().parameters) == 5


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (nn.Sequential(), "with layers"),
        (nn.Sequential(nn.ReLU()), "got no parameters"),
        (nn.Sequential(nn.LSTM(3, 3)), "expected one tensor of 2 samples .* got tuple"),
    ],
)
def test_what_is_no_chain_of_tensors_is_refused(module, text):
    with pytest.raises(UsageError, match=text):
        SequentialStages(module, (4, 3), LOSS)


def test_a_layer_in_two_places_is_refused():
    layer = nn.Linear(3, 3)
    with pytest.raises(UsageError, match="each layer once"):
        SequentialStages(nn.Sequential(layer, nn.ReLU(), layer), (3,), LOSS)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return self.inner(self.inner(x))


def test_any_module_is_one_layer_where_it_is_not_cut():
    with pytest.raises(UsageError, match=r"expected a torch\.nn\.Sequential with layers, got Twice"):
        SequentialStages(Twice(), (3,), LOSS)
    whole = SequentialStages(Twice(), (3,), LOSS, uncut=True)
    assert len(whole.layers) == 1 and whole.output_shape == (3,)
    assert [p.name for p in whole.layout().parameters] == ["inner.weight", "inner.bias"]
