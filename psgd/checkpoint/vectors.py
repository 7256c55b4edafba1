"""From any number of servers' shards to whole vectors, and to any other number of them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint.state import State
from psgd.kernels.errors import CheckpointError
from psgd.runtime.jsonable import wholes


def is_sharded(state: State) -> bool:
    """Whether other states have the other parts of this one's vectors."""
    return "range" in state.facts


def assemble(states: Iterable[State]) -> dict[str, NDArray[Any]]:
    """Joins what `cut` names in states whose ranges make up a whole vector, in any order.

    Raises:
        CheckpointError: a gap, an overlap, or states that do not fit each other.
    """
    try:
        parts = sorted(states, key=lambda state: tuple(state.facts["range"][:2]))
        names: list[str] = list(parts[0].facts["cut"]) if parts else []
        at = n = 0
        for state in parts:
            start, stop, of = wholes(state.facts, "range", 3)
            n = n or of
            if start != at or stop < start or of != n or list(state.facts["cut"]) != names:
                raise CheckpointError(f"shards do not fit together: elements {start} to {stop} of {of} after {at}")
            for name in names:
                tensor = state.tensors[name]
                if tensor.shape != (stop - start,) or tensor.dtype != parts[0].tensors[name].dtype:
                    raise CheckpointError(f"shards do not fit together: tensor {name} of elements {start} to {stop}")
            at = stop
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CheckpointError(f"shards do not fit together: {error!r}") from None
    if at != n:
        raise CheckpointError(f"shards do not fit together: {at} elements of {n}")
    return {name: np.concatenate([state.tensors[name] for state in parts]) for name in names}


def weights(states: Sequence[State]) -> NDArray[Any]:
    """The vector that the run would give if it ended here: see the facts of `State`.

    Raises:
        CheckpointError: there is none, or the parts do not fit.
    """
    shards = [state for state in states if is_sharded(state)]
    if shards:
        whole = assemble(shards)
        named = shards[0].facts.get("weights", "params")
        if isinstance(named, str) and named in whole:
            return whole[named]
    named_in = [state for state in states if "weights" in state.facts] or list(states)
    found = [state.tensors.get(str(state.facts.get("weights", "params"))) for state in named_in]
    vectors = [vector for vector in found if vector is not None]
    if not vectors or vectors[0].ndim != 1 or any(vector.shape != vectors[0].shape for vector in vectors):
        raise CheckpointError(
            "no weights: expected a tensor 'params' in every state, or a fact 'weights' that names one"
        )
    total = np.zeros(vectors[0].shape, np.float64)
    for vector in vectors:
        total += vector
    return (total / len(vectors)).astype(vectors[0].dtype)


def joined(tensors: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    """A vector of which each server's codec has a part: "0.name", "1.name", ...

    Raises:
        CheckpointError: there is none, or the parts do not fit each other.
    """
    parts: list[NDArray[Any]] = []
    while (part := tensors.get(f"{len(parts)}.{name}")) is not None:
        parts.append(part)
    if not parts or any(part.ndim != 1 or part.dtype != parts[0].dtype for part in parts):
        raise CheckpointError(f"expected vectors 0.{name}, 1.{name}, ..., of each server one")
    return np.concatenate(parts)
