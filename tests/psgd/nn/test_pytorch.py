"""The forms that PyTorch has of parameters, by hand; `tests/psgd/checkpoint/test_export.py` has PyTorch itself."""

import json

import numpy as np
import pytest

from psgd.kernels.errors import UsageError
from psgd.nn import models, pytorch
from psgd.nn.layout import Layout
from psgd.nn.pytorch import TorchForm


def test_forms_by_hand():
    weight = np.arange(6.0).reshape(3, 2)
    assert pytorch.linear(3, 2).of(weight).tolist() == weight.T.tolist()
    kernel = np.arange(2 * 2 * 3 * 5.0).reshape(2, 2, 3, 5)
    assert np.array_equal(pytorch.convolution(2, 3, 5).of(kernel), np.moveaxis(kernel, (3, 2), (0, 1)))
    image = np.arange(2 * 3 * 4 * 5).reshape(2 * 3 * 4, 5)  # height 2, width 3, 4 channels; 5 units
    turned = pytorch.linear_behind_image((2, 3, 4), 5).of(image)
    for unit, channel, row, column in np.ndindex(5, 4, 2, 3):
        assert turned[unit, (channel * 2 + row) * 3 + column] == image[(row * 3 + column) * 4 + channel, unit]


def test_a_models_layout_has_them_and_keeps_them_as_json():
    layout = models.build("cnn", (1, 8, 8), 4, hidden=7).layout
    assert {name: form.shape for name, form in layout.torch} == {
        "conv1.weight": (16, 1, 3, 3),
        "conv2.weight": (32, 16, 3, 3),
        "linear1.weight": (7, 32 * 2 * 2),
        "linear2.weight": (4, 7),
    }
    assert Layout.from_json(layout.to_json()) == layout
    named = layout.for_torch(np.zeros(layout.size))
    assert list(named) == list(layout.views(np.zeros(layout.size))) and named["conv2.bias"].shape == (32,)


def test_other_names_of_a_parameter_have_its_form():
    layout = Layout([("w", (2, 3)), ("b", (3,))], tied={"v": "w", "c": "b"}, torch={"w": pytorch.linear(2, 3)})
    named = layout.for_torch(np.arange(float(layout.size)))
    assert named["v"] is named["w"] and named["v"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert named["c"].tolist() == [16, 17, 18] and Layout.from_json(layout.to_json()) == layout
    assert "torch" not in json.loads(Layout([("w", (2, 3))]).to_json())


@pytest.mark.parametrize(
    "form",
    [
        ((2, 3), (1, 0), (3, 3)),
        ((2, 3), (1, 1), (3, 2)),
        ((2, 3), (1,), (3, 2)),
        ((-2, -3), (1, 0), (3, 2)),
        ((2, 3), ("0", "1"), (3, 2)),
        ((2, 4), (1, 0), (4, 2)),
        ((2, 3.0), (1, 0), (3, 2)),
    ],
)
def test_forms_that_cannot_be(form):
    with pytest.raises(UsageError, match="the form that PyTorch stores of 'w' does not fit it"):
        Layout([("w", (2, 3))], torch={"w": TorchForm(*form)})
    text = Layout([("w", (2, 3))], torch={"w": pytorch.linear(2, 3)}).to_json()
    fields = json.loads(text) | {"torch": {"w": dict(zip(TorchForm._fields, form, strict=True))}}
    with pytest.raises(UsageError, match="layout"):
        Layout.from_json(json.dumps(fields))
    with pytest.raises(UsageError, match="layout"):
        Layout.from_json(json.dumps(json.loads(text) | {"torch": {"w": {"split": 3}}}))
