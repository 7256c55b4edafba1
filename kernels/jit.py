"""One way to compile a host kernel: cached on disk, GIL released, no fast-math (results repeat bit for bit)."""

from collections.abc import Callable
from typing import TypeVar

import numba

F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compiles `function` with Numba on its first call and keeps the machine code on disk.

    The GIL is released while it runs. Fast-math is off and no contraction is allowed, so that the same
    inputs give the same bits on every rank of one machine type.
    """
    compiled: F = numba.njit(function, cache=True, nogil=True, fastmath=False, error_model="numpy")
    return compiled
