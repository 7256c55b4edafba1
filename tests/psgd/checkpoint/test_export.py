"""Weights in files for other programs: `tests/launch/test_checkpoint.py` has the command."""

import os
import sys

import numpy as np
import pytest

from psgd.checkpoint import export
from psgd.kernels.errors import UsageError

ARRAYS = {"0.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "file": np.ones(2), "none": np.zeros(0)}


def test_numpy_reads_every_array_under_its_name(tmp_path):
    export.write(tmp_path / "w.npz", ARRAYS, "-o")
    with np.load(tmp_path / "w.npz", allow_pickle=False) as found:
        assert sorted(found.files) == sorted(ARRAYS)
        for name, array in ARRAYS.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)
    assert os.listdir(tmp_path) == ["w.npz"]


def test_pytorch_reads_a_state_dict(tmp_path):
    torch = pytest.importorskip("torch")
    export.write(tmp_path / "w.pt", ARRAYS, "-o")
    found = torch.load(tmp_path / "w.pt", weights_only=True)
    assert {name: array.numpy().tolist() for name, array in found.items()} == {k: v.tolist() for k, v in ARRAYS.items()}


def test_a_strided_array_is_written_by_its_values(tmp_path):
    export.write(tmp_path / "w.npz", {"a": np.arange(10)[::-3]}, "-o")
    with np.load(tmp_path / "w.npz") as found:
        assert found["a"].tolist() == [9, 6, 3, 0]


def test_what_cannot_be_written_leaves_nothing_new(tmp_path, monkeypatch):
    (tmp_path / "w.npz").write_text("old")

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "_numpy", full)
    with pytest.raises(UsageError, match=r"-o .*w.npz: cannot be written: No space left on device"):
        export.write(tmp_path / "w.npz", ARRAYS, "-o")
    assert (tmp_path / "w.npz").read_text() == "old" and os.listdir(tmp_path) == ["w.npz"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("w.txt", r"expected a name that ends in .npz or .pt"),
        ("missing/w.npz", "expected a file in an existing folder, .*missing is none"),
        ("folder.npz", "expected a file that can be written, got no permission or a folder"),
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
