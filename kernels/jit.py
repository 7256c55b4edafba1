"""One way to compile a host kernel: cached on disk, GIL released, no fast-math (results repeat bit for bit)."""

import functools
from collections.abc import Callable
from typing import TypeVar

import numba

F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compiles `function` with Numba on its first call and keeps the machine code on disk.

    The GIL is released while it runs. Fast-math is off and no contraction is allowed, so that the same
    inputs give the same bits on every rank of one machine type.
    """
    compile_ = functools.partial(numba.njit, nogil=True, fastmath=False, error_model="numpy")
    try:
        compiled: F = compile_(function, cache=True)
    except RuntimeError:  # neither beside the file nor in the home may a cache be written: compile each time
        compiled = compile_(function)
    return compiled
