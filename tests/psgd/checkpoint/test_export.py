"""Weights in files for other programs: `tests/launch/test_checkpoint.py` has the command."""

import os
import sys

import numpy as np
import pytest

from psgd.checkpoint import export
from psgd.kernels.errors import UsageError
from psgd.nn import models
from psgd.nn.conv2d import Conv2D
from psgd.nn.layout import Layout
from psgd.nn.linear import Linear
from psgd.nn.relu import ReLU
from psgd.nn.reshape import ChannelsLast, Flatten
from psgd.nn.stage import Stage

LAYOUT = Layout([("0.weight", (2, 3)), ("file", (2,))], tied={"same": "file"})
VECTOR = np.arange(LAYOUT.size, dtype=np.float32)
ARRAYS = {"0.weight": [[0, 1, 2], [3, 4, 5]], "file": [16, 17], "same": [16, 17]}


def test_numpy_reads_every_array_under_its_name(tmp_path):
    assert export.write(tmp_path / "w.npz", VECTOR, LAYOUT, "-o") == list(ARRAYS)
    with np.load(tmp_path / "w.npz", allow_pickle=False) as found:
        assert {name: found[name].tolist() for name in found.files} == ARRAYS
        assert found["file"].dtype == np.float32
    assert os.listdir(tmp_path) == ["w.npz"]


def test_without_a_layout_there_is_one_array(tmp_path):
    export.write(tmp_path / "w.npz", np.arange(10)[::-3], None, "-o")
    with np.load(tmp_path / "w.npz") as found:
        assert {name: found[name].tolist() for name in found.files} == {"params": [9, 6, 3, 0]}


def test_pytorch_reads_a_layout_of_ones_own_as_it_is(tmp_path):
    torch = pytest.importorskip("torch")
    export.write(tmp_path / "w.pt", VECTOR, LAYOUT, "-o")
    found = torch.load(tmp_path / "w.pt", weights_only=True)
    assert {name: array.tolist() for name, array in found.items()} == ARRAYS


def twin(torch, layers, shape):
    """A PyTorch module of the same layers, names and function, for images (channels, height, width) or tokens."""
    nn = torch.nn

    class Twin(nn.Module):
        def __init__(self, layers, shape):
            super().__init__()
            self.steps, counts = [], {}
            for layer in layers:
                counts[layer.name] = counts.get(layer.name, 0) + 1
                module, shape = self.made(layer, shape)
                if isinstance(module, nn.Module):
                    setattr(self, f"{layer.name}{counts[layer.name]}", module)
                self.steps.append(module)
                if getattr(layer, "relu", False):
                    self.steps.append(torch.relu)
            self.shape = shape

        def made(self, layer, shape):
            match type(layer).__name__:
                case "ChannelsLast":
                    return torch.nn.Identity(), shape  # PyTorch's images stay as they are
                case "Conv2D":
                    made = nn.Conv2d(shape[0], layer.channels, layer.size, layer.stride, layer.padding)
                    return made, made(torch.zeros(1, *shape)).shape[1:]
                case "MaxPool":
                    made = nn.MaxPool2d(layer.size)
                    return made, made(torch.zeros(1, *shape)).shape[1:]
                case "ReLU":
                    return torch.relu, shape
                case "Flatten":
                    return nn.Flatten(), (int(np.prod(shape)),)
                case "Linear":
                    return nn.Linear(shape[-1], layer.units), (*shape[:-1], layer.units)
                case "Transpose":
                    return (lambda x: x.transpose(1, 2)), shape[::-1]
                case "MeanPool":
                    return (lambda x: x.mean(1)), shape[1:]
                case "Residual":
                    inner = Twin(layer.layers, shape)
                    inner.adds = True
                    return inner, shape
            raise AssertionError(layer)

        adds = False

        def forward(self, x):
            y = x
            for step in self.steps:
                y = step(y)
            return x + y if self.adds else y

    return Twin(layers, shape)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("softmax", (2, 5, 4)), ("mlp", (2, 5, 4)), ("cnn", (1, 8, 8)), ("cnn", (3, 9, 13)), ("resmlp", (6, 5))],
)
def test_a_pytorch_module_of_the_same_names_computes_the_same(tmp_path, name, shape):
    torch = pytest.importorskip("torch")
    model = models.build(name, shape, 4, hidden=7)
    params = model.init(3) + np.random.default_rng(0).normal(size=model.layout.size).astype(np.float32) * 0.1
    export.write(tmp_path / "w.pt", params, model.layout, "-o")
    module = twin(torch, model.layers, shape)
    module.load_state_dict(torch.load(tmp_path / "w.pt", weights_only=True), strict=True)
    x = np.random.default_rng(1).normal(size=(3, *shape)).astype(np.float32)
    model.bind(params)
    expected = model.logits(model.context(3), x)
    np.testing.assert_allclose(module(torch.from_numpy(x)).detach().numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "layers",
    [
        [ChannelsLast(), Conv2D(3, 2, stride=2, padding=1), Flatten(), ReLU(), Linear(4, relu=True), Linear(2)],
        [ChannelsLast(), Flatten(), Linear(4)],
        [Flatten(), Linear(4), Linear(3)],
    ],
    ids=["strided", "no convolution", "flat"],
)
def test_layers_put_together_otherwise(tmp_path, layers):
    torch = pytest.importorskip("torch")
    stage = Stage(layers, (2, 6, 7))
    params = stage.init(5)
    export.write(tmp_path / "w.pt", params, stage.layout, "-o")
    module = twin(torch, layers, (2, 6, 7))
    module.load_state_dict(torch.load(tmp_path / "w.pt", weights_only=True), strict=True)
    x = np.random.default_rng(1).normal(size=(3, 2, 6, 7)).astype(np.float32)
    stage.bind(params)
    expected = stage.forward(stage.context(3), x)
    np.testing.assert_allclose(module(torch.from_numpy(x)).detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_written_leaves_nothing_new(tmp_path, monkeypatch):
    (tmp_path / "w.npz").write_text("old")

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "_numpy", full)
    with pytest.raises(UsageError, match=r"-o .*w.npz: cannot be written: No space left on device"):
        export.write(tmp_path / "w.npz", VECTOR, LAYOUT, "-o")
    assert (tmp_path / "w.npz").read_text() == "old" and os.listdir(tmp_path) == ["w.npz"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("w.txt", r"expected a name that ends in .npz or .pt"),
        ("missing/w.npz", "expected a file in an existing folder, .*missing is not a folder"),
        ("folder.npz", "expected a file that can be written, but it is a folder"),
    ],
)
def test_names_are_checked_before_anything_is_computed(tmp_path, name, why):
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(UsageError, match=f"--save .*: {why}"):
        export.check(tmp_path / name, "--save")
    assert os.listdir(tmp_path) == ["folder.npz"]


def test_pytorch_must_be_there_for_its_format(tmp_path, monkeypatch):
    export.check(tmp_path / "w.npz", "-o")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match="needs PyTorch; pip install torch"):
        export.check(tmp_path / "w.pt", "-o")
