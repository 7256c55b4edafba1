"""Arrays and facts of saved states, put back; or, with another number of workers, what becomes of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint.state import State
from psgd.kernels.errors import CheckpointError
from psgd.runtime.device_vectors import fill
from psgd.runtime.jsonable import MOST_COUNTED, whole

Arrays = Mapping[str, NDArray[Any]]


def put_back(arrays: Arrays, state: State) -> None:
    """Fills arrays with the tensors of the same name.

    Raises:
        CheckpointError: one is missing, or has another shape or dtype.
    """
    for name, array in arrays.items():
        fill(array, fitting(name, array, state.tensors.get(name)))


def fitting(name: str, array: NDArray[Any], tensor: NDArray[Any] | None) -> NDArray[Any]:
    """The tensor, if it can be put into the array; raises CheckpointError as `put_back`."""
    if tensor is None:
        raise CheckpointError(f"this checkpoint has no {name}: it was saved with other options")
    if tensor.shape != array.shape or tensor.dtype != array.dtype:
        raise CheckpointError(
            f"{name}: expected {array.dtype} of shape {array.shape}, "
            f"the checkpoint has {tensor.dtype} of shape {tensor.shape}"
        )
    return tensor


def first(arrays: Arrays, states: Sequence[State]) -> State:
    """The first state that has all of these tensors.

    Raises:
        CheckpointError: none has.
    """
    found = has(arrays, states)
    if not found:
        raise CheckpointError(f"this checkpoint has no {', '.join(arrays)}: it was saved with other options")
    return found[0]


def has(arrays: Arrays, states: Sequence[State]) -> list[State]:
    """The states that have all of these tensors."""
    return [state for state in states if all(name in state.tensors for name in arrays)]


def total(arrays: Arrays, states: Sequence[State], factor: float = 1.0) -> None:
    """Fills arrays with the sums, times `factor`, of the tensors of all states that have them."""
    for name, array in arrays.items():
        added = np.zeros(array.shape, np.float64)
        for state in has({name: array}, states):
            added += fitting(name, array, state.tensors[name])
        fill(array, added * factor)


def mean(arrays: Arrays, states: Sequence[State]) -> bool:
    """Fills arrays with the means of the tensors of all states that have them; returns whether any has."""
    found = has(arrays, states)
    if found:
        total(arrays, found, 1.0 / len(found))
    return bool(found)


def common(states: Sequence[State], name: str) -> int:
    """A number that all states that have it have alike, as `version` and `samples`.

    Raises:
        CheckpointError: none has it.
    """
    found = [whole(state.facts, name) for state in states if name in state.facts]
    return max(found) if found else whole({}, name)


def check_counts(name: str, array: NDArray[Any]) -> None:
    """Raises CheckpointError where an array of counts that was put back has something else."""
    if not np.all(np.isfinite(array) & (np.abs(array) < MOST_COUNTED)):
        raise CheckpointError(f"{name}: expected counts, the checkpoint has {array.reshape(-1)[:4]}...")
