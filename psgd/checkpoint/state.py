"""What one rank saves, and what it gets back."""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psgd.runtime.jsonable import JSON

WEIGHTS = ("params", "centre", "pulled")
"""Tensors that must be numbers: a run goes on from them."""


@dataclass
class State:
    """One rank's part of a checkpoint.

    Facts with a meaning for all:

    - `range`: [start, stop, n]: tensors named in `cut` are elements start to stop of vectors of n elements, the other
      parts lying in other ranks' states (`psgd.checkpoint.vectors`);
    - `cut`: the names of those tensors;
    - `weights`: name of the tensor that the run would give if it ended now, cut or whole; where several ranks have a
      whole one, the run's is their mean. Without this fact it is `params` where there is one.

    Attributes:
        tensors: by name, of any shape and of a real type; views, the caller's until `Writer.save` returns.
        facts: whatever else, as JSON can say it.
    """

    tensors: MutableMapping[str, NDArray[Any]] = field(default_factory=dict)
    facts: dict[str, JSON] = field(default_factory=dict)

    @property
    def finite(self) -> bool:
        """Whether the weights in it are numbers. A state that has others is not saved, and not believed."""
        return all(bool(np.isfinite(self.tensors[name]).all()) for name in WEIGHTS if name in self.tensors)


class Stead(NamedTuple):
    """Who saves the parts of servers that have died.

    Attributes:
        writers: of each such part's name, the rank of the mesh's world that saves it; the same on all servers.
        states: those that this rank saves, by name; views.
    """

    writers: Mapping[str, int] = {}
    states: Mapping[str, State] = {}
