"""Functions on NumPy arrays, run on a GPU; skips the test where there is none."""

import functools

import numpy as np
import pytest


def cupy():
    """CuPy, where there is a GPU."""
    module = pytest.importorskip("cupy")
    if not module.cuda.is_available():
        pytest.skip("no GPU")
    return module


def on_gpu(function):
    """`function` with its array arguments taken to the GPU and back, as a marked parameter."""

    @functools.wraps(function)
    def call(*args):
        xp = cupy()
        there = [xp.asarray(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
        result = function(*there)
        for arg, array in zip(args, there, strict=True):
            if isinstance(arg, np.ndarray):
                arg[...] = array.get()
        return result

    return pytest.param(call, marks=pytest.mark.gpu, id=f"{getattr(function, '__name__', 'function')}-gpu")
