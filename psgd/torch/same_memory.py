"""Vectors of NumPy and CuPy as PyTorch's tensors, and back: the same memory, on the host and on a GPU."""

from typing import Any

import numpy as np
import torch

from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError


def tensor_of(array: Array) -> torch.Tensor:
    """A tensor over the array's memory, which it keeps alive."""
    return torch.from_numpy(np.asarray(array)) if isinstance(array, np.ndarray) else torch.from_dlpack(array)


def array_of(tensor: torch.Tensor) -> Array:
    """An array over the memory of a tensor that needs no gradient: NumPy's, or on a GPU CuPy's."""
    return tensor.numpy() if tensor.device.type == "cpu" else cupy().from_dlpack(tensor)


def cupy() -> Any:
    """CuPy.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import cupy as found
    except ImportError as error:
        raise UsageError(
            f"psgd.torch: a module on a GPU needs CuPy, got {error}; install it: pip install cupy-cuda13x (or "
            "cupy-cuda12x), or use module.cpu()"
        ) from None
    return found
