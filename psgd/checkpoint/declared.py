"""What a worker keeps for a checkpoint, declared item by item: one place saves it, restores it and combines it.

A strategy lists `Arrays` and `Fact`s. Each says what becomes of it when another number of workers resumes the run.
Where the number is the same, every worker gets back what it had itself.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from psgd.checkpoint import restore, vectors
from psgd.checkpoint.state import State
from psgd.runtime.device_vectors import fill
from psgd.runtime.jsonable import JSON, fact, same_kind

Lines = list[str]


class Combine(Enum):
    """What another number of workers makes of what each worker has saved."""

    ALIKE = "alike"
    """All workers have the same. One saves it, and the same one restores it; the strategy sends it to the others."""
    FRESH = "fresh"
    """Each worker's own. Other workers begin without it: it stays as it was made."""
    MEAN = "mean"
    """Each worker begins with the mean of all."""
    SUM = "sum"
    """Worker 0 begins with the sum of all, so that nothing is lost; the others begin without it."""
    FIRST = "first"
    """Each worker begins with what the first worker had that saved it."""
    WEIGHTS = "weights"
    """Each worker begins with the weights that the run would have ended with (`vectors.weights`)."""


class Item(Protocol):
    """A part of a worker's state."""

    def save(self, state: State, worker: int) -> None:
        """Adds to the state that worker `worker` saves. Tensors are views."""

    def restore(self, own: State | None, states: Sequence[State], worker: int) -> Lines:
        """Restores what was saved.

        Args:
            own: this worker's state; None where the number of workers is another, or where it saved none.
            states: all states of the checkpoint, those of servers first.
            worker: this worker's index.

        Returns:
            A line for each thing that could not be kept as it was.
        """


@dataclass
class Arrays:
    """Arrays of one meaning.

    Attributes:
        arrays: by name, restored in place; on the host or a GPU.
        combine: what becomes of them with another number of workers.
        owner: the only worker that saves and restores them; None: all do. Of ALIKE arrays None means worker 0.
        weights: name of the one that the run would end with, where that is not `params`.
        found: with another number of workers, a line on what became of them.
        missing: the same where nobody has saved them; then they begin anew.
        factor: what a MEAN is multiplied by.
    """

    arrays: Mapping[str, NDArray[Any]]
    combine: Combine
    owner: int | None = None
    weights: str = ""
    found: str = ""
    missing: str = ""
    factor: float = 1.0

    def save(self, state: State, worker: int) -> None:
        if not self._concerns(worker):
            return
        state.tensors.update(self.arrays)
        if self.weights:
            state.facts["weights"] = self.weights

    def restore(self, own: State | None, states: Sequence[State], worker: int) -> Lines:
        if not self._concerns(worker):
            return []
        if self.combine is Combine.ALIKE:
            self._restore_alike(_saved(own, states))
            return []
        if own is not None:
            restore.put_back(self.arrays, own)
            return []
        found = self.combine is Combine.WEIGHTS or bool(restore.has(self.arrays, states))
        if found:
            self._combine(states, worker)
        line = self.found if found else self.missing
        return [line] if line and self.arrays else []

    def _concerns(self, worker: int) -> bool:
        owner = 0 if self.owner is None and self.combine is Combine.ALIKE else self.owner
        return owner is None or worker == owner

    def _restore_alike(self, states: Sequence[State]) -> None:
        if self.weights:  # whatever the saved run called them
            self._fill_weights(self.weights, states)
        elif self.arrays:
            name = next(iter(self.arrays))
            restore.put_back(self.arrays, restore.first({name: self.arrays[name]}, states))

    def _combine(self, states: Sequence[State], worker: int) -> None:
        if self.combine is Combine.MEAN:
            restore.mean(self.arrays, states)
            for array in self.arrays.values() if self.factor != 1.0 else ():
                np.multiply(array, array.dtype.type(self.factor), out=array)
        elif self.combine is Combine.SUM and worker == 0:
            restore.total(self.arrays, states)
        elif self.combine is Combine.FIRST:
            restore.put_back(self.arrays, restore.first(self.arrays, states))
        elif self.combine is Combine.WEIGHTS:
            for name in self.arrays:
                self._fill_weights(name, states)

    def _fill_weights(self, name: str, states: Sequence[State]) -> None:
        array = self.arrays[name]
        fill(array, restore.fitting(name, array, vectors.weights(states)))


@dataclass
class Fact:
    """A number: an attribute of some object. What a checkpoint has must be of the kind that it is now.

    Attributes:
        name: in the checkpoint.
        owner: the object.
        attribute: of the object; None: it has the fact's name.
        combine: FRESH is each worker's own, and has to be there. ALIKE is the largest in any state.
        also: a name under which other strategies save the same, for ALIKE.
        default: the value where no state has it, for ALIKE; None makes that an error.
    """

    name: str
    owner: Any
    attribute: str | None = None
    combine: Combine = Combine.ALIKE
    also: str = ""
    default: int | None = None

    def save(self, state: State, worker: int) -> None:
        state.facts[self.name] = getattr(self.owner, self.attribute or self.name)

    def restore(self, own: State | None, states: Sequence[State], worker: int) -> Lines:
        attribute = self.attribute or self.name
        if self.combine is Combine.ALIKE:
            setattr(self.owner, attribute, self._alike(_saved(own, states)))
        elif own is not None:
            setattr(self.owner, attribute, same_kind(own.facts, self.name, getattr(self.owner, attribute)))
        return []

    def _alike(self, states: Sequence[State]) -> int:
        for name in (self.name, self.also):
            if any(name in state.facts for state in states):
                return restore.common(states, name)
        return restore.common(states, self.name) if self.default is None else self.default


@dataclass
class OwnFacts:
    """Facts of each worker's own, through functions. Another number of workers begins without them.

    Attributes:
        get: gives them by name.
        put: restores them, and checks what they are; called with all of the names that `get` gives.
    """

    get: Callable[[], dict[str, JSON]]
    put: Callable[[Mapping[str, JSON]], None]

    def save(self, state: State, worker: int) -> None:
        state.facts |= self.get()

    def restore(self, own: State | None, states: Sequence[State], worker: int) -> Lines:
        if own is not None:
            self.put({name: fact(own.facts, name) for name in self.get()})
        return []


def _saved(own: State | None, states: Sequence[State]) -> Sequence[State]:
    """What a worker looks in: its own state, which has all that it needs, or where it has none all that there are."""
    return states if own is None else [own]


def save(items: Iterable[Item], worker: int) -> State:
    """The state that a worker saves: views of its arrays, and its facts."""
    state = State()
    for item in items:
        item.save(state, worker)
    return state


def restore_all(items: Iterable[Item], own: State | None, states: Sequence[State], worker: int) -> Lines:
    """Restores all items in their order; the arguments and the result are those of `Item.restore`."""
    return [line for item in items for line in item.restore(own, states, worker)]
