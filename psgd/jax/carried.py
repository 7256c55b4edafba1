"""What is not trained, state and frozen leaves: packed for messages and checkpoints, and the state's mean."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.jax import leaves
from psgd.kernels.errors import UsageError
from psgd.worker.bound_model import Wait

Arrays = Sequence[jax.Array]

MODES = ("average", "broadcast", "local")


def checked(mode: str) -> str:
    """The mode, if there is such a one."""
    if mode not in MODES:
        raise UsageError(f"psgd.jax.wrap: final_state: expected one of {', '.join(MODES)}, got {mode!r}")
    return mode


def flat(state: Any, device: Any) -> tuple[list[str], list[jax.Array], Any]:
    """Names and arrays of a state, on the device, and its structure.

    Raises:
        UsageError: something in it is no array.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(state)
    names = [leaves.named(path) or "state" for path, _ in paths]
    arrays = [leaves.array(f"psgd.jax.wrap: state: {n}", value) for n, (_, value) in zip(names, paths, strict=True)]
    return names, [jax.device_put(each, device) for each in arrays], structure


def described(names: Sequence[str], arrays: Arrays) -> list[tuple[str, str, list[int]]]:
    """Names, dtypes and shapes, which are the same on all ranks."""
    return [(name, str(a.dtype), list(a.shape)) for name, a in zip(names, arrays, strict=True)]


def packed(arrays: Arrays) -> NDArray[np.uint8]:
    """A copy of all, byte by byte, one after the other."""
    parts = [np.ascontiguousarray(np.asarray(a)).reshape(-1).view(np.uint8) for a in arrays]
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)


def unpacked(like: Arrays, data: NDArray[np.uint8], device: Any) -> list[jax.Array]:
    """New arrays with what `packed` gave."""
    found, at = [], 0
    for array in like:
        stop = at + array.size * array.dtype.itemsize
        found.append(jax.device_put(data[at:stop].copy().view(array.dtype).reshape(array.shape), device))
        at = stop
    return found


def broadcast(arrays: Arrays, comm: MPI.Comm, wait: Wait, first: int, device: Any) -> list[jax.Array]:
    """Those of rank `first`. Collective, blocks."""
    data = packed(arrays)
    if data.size:
        wait(comm.Ibcast(data, first))
    return list(arrays) if comm.Get_rank() == first else unpacked(arrays, data, device)


def average(arrays: Arrays, comm: MPI.Comm, wait: Wait, first: int, counts: bool, device: Any) -> list[jax.Array]:
    """On rank `first`, real numbers become the mean over the ranks that count. Collective, blocks."""
    real = [bool(jnp.issubdtype(a.dtype, jnp.floating) and a.size) for a in arrays]
    if not any(real):
        return list(arrays)
    parts = [np.asarray(a).reshape(-1).astype(np.float64) for a, is_real in zip(arrays, real, strict=True) if is_real]
    mine = np.concatenate([*parts, np.ones(1)])
    if not counts:
        mine = np.zeros_like(mine)
    total = np.empty_like(mine)
    wait(comm.Ireduce(mine, total, MPI.SUM, first))
    if comm.Get_rank() != first or not total[-1]:
        return list(arrays)
    means, at, found = total[:-1] / total[-1], 0, []
    for array, is_real in zip(arrays, real, strict=True):
        if is_real:
            mean = means[at : at + array.size].reshape(array.shape).astype(array.dtype)
            at += array.size
            found.append(jax.device_put(mean, device))
        else:
            found.append(array)
    return found
