"""Vectors as tensors and back: one memory, on either side."""

import numpy as np
import pytest
from harness.device import cupy

from psgd.kernels.array import address

torch = pytest.importorskip("torch")
from psgd.torch.same_memory import array_of, tensor_of  # noqa: E402 -- where PyTorch is

SIDES = ["host", pytest.param("gpu", marks=pytest.mark.gpu)]


def module_of(side):
    return np if side == "host" else cupy()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_there_and_back(side, dtype):
    xp = module_of(side)
    vector = xp.arange(10, dtype=dtype)
    part = vector[3:7]
    tensor = tensor_of(part)
    assert tensor.data_ptr() == address(part) == address(vector) + 3 * vector.itemsize
    assert tensor.device.type == ("cpu" if side == "host" else "cuda")
    tensor.mul_(2)
    assert vector.tolist() == [0, 1, 2, 6, 8, 10, 12, 7, 8, 9]
    again = array_of(tensor)
    assert isinstance(again, xp.ndarray) and address(again) == tensor.data_ptr()
    again += 1
    assert tensor.tolist() == [7, 9, 11, 13]


@pytest.mark.parametrize("side", SIDES)
def test_memory_stays_as_long_as_either_is_used(side):
    xp = module_of(side)
    tensor = tensor_of(xp.full(1000, 3.0, np.float32))
    others = [xp.zeros(1000, np.float32) for _ in range(20)]
    assert tensor.eq(3).all() and len(others) == 20
    array = array_of(torch.full((1000,), 4.0, device=tensor.device))
    more = [torch.zeros(1000, device=tensor.device) for _ in range(20)]
    assert bool((array == 4).all()) and len(more) == 20


def test_of_a_parameter_it_is_the_values():
    parameter = torch.nn.Parameter(torch.ones(2))
    assert array_of(parameter.detach()).tolist() == [1, 1]


def test_without_cupy_a_module_on_a_gpu_is_refused(monkeypatch):
    import sys

    from psgd.kernels.errors import UsageError
    from psgd.torch import same_memory

    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(UsageError, match=r"a module on a GPU needs CuPy, got .*: pip install cupy-cuda13x"):
        same_memory.cupy()
