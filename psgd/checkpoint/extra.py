"""What a program saves beside (`ps.extra`): it comes back equal and of its type, or is refused when it is saved."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint import shards
from psgd.checkpoint.state import State
from psgd.kernels.errors import CheckpointError
from psgd.runtime.jsonable import JSON, section, texts, unsaid

_PREFIX = "extra."
OWN = "psgd."
"""Names that begin so are psgd's."""


def split(extra: Mapping[str, Any]) -> tuple[dict[str, NDArray[Any]], dict[str, JSON]]:
    """The tensors of a state, and the facts: the rest as JSON can say it.

    NumPy's scalars are among the tensors, without an axis; the fact `scalars` names them.

    Raises:
        CheckpointError: naming what would not be restored unchanged.
    """
    arrays: dict[str, NDArray[Any]] = {}
    others: dict[str, JSON] = {}
    scalars = []
    for name, value in extra.items():
        if type(name) is not str:
            raise CheckpointError(f"extra: expected strings as names, got {name!r}")
        where = f"extra[{name!r}]"
        if isinstance(value, np.generic) or type(value) is np.ndarray:
            array = np.asarray(value)
            array = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
            if array.dtype not in shards.TYPES:
                expected = ", ".join(map(str, shards.TYPES))
                raise CheckpointError(f"{where}: expected numbers of dtype {expected}, got {array.dtype}")
            arrays[_PREFIX + name] = array
            if isinstance(value, np.generic):
                scalars.append(name)
        elif complaint := unsaid(value, where):
            hint = "; convert it with numpy.array" if isinstance(value, np.ndarray) else ""
            raise CheckpointError(
                f"{complaint}{hint} (expected numbers, strings, lists and dicts of these, plain NumPy arrays and "
                "scalars)"
            )
        else:
            others[name] = value
    return arrays, {"extra": others, "scalars": scalars}


def joined(loop: Mapping[str, JSON], state: State) -> dict[str, Any]:
    """The reverse, for a state that has been read; takes the arrays out of it.

    Raises:
        CheckpointError: the facts are not such.
    """
    names = [name for name in state.tensors if name.startswith(_PREFIX)]
    arrays = {name.removeprefix(_PREFIX): state.tensors.pop(name) for name in names}
    for name in texts({"scalars": []} | dict(loop), "scalars"):
        if name in arrays and arrays[name].ndim == 0:
            arrays[name] = arrays[name][()]
    return section(loop, "extra") | arrays


def is_in(state: State) -> bool:
    """Whether a program, not psgd, has saved something with a worker's state."""
    loop = section(state.facts, "loop") if "loop" in state.facts else {}
    names = [*section(loop, "extra")] if "extra" in loop else []
    names += [name.removeprefix(_PREFIX) for name in state.tensors if name.startswith(_PREFIX)]
    return any(not name.startswith(OWN) for name in names)


def own_of(states: Iterable[State]) -> dict[str, list[NDArray[Any]]]:
    """The arrays that psgd itself has saved this way, of all workers in their order."""
    found: dict[str, list[NDArray[Any]]] = {}
    for state in states:
        for name, array in state.tensors.items():
            if name.startswith(_PREFIX + OWN):
                found.setdefault(name.removeprefix(_PREFIX), []).append(array)
    return found
