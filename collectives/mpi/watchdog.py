"""What every wait of this process advances between two tests: another rank may wait for that first."""

import threading
import weakref
from typing import Protocol


class Background(Protocol):
    """A call that is under way beside the current one."""

    def advance(self) -> None:
        """Does what can be done now."""


class Backgrounds:
    """Some of them, none of which is kept alive. Threads may add and remove some while others advance them."""

    def __init__(self) -> None:
        self._all: tuple[weakref.ref[Background], ...] = ()
        self._lock = threading.Lock()

    def add(self, one: Background) -> None:
        """Adds one, unless it is in."""
        with self._lock:
            self._all = (*self._without(one), weakref.ref(one))

    def discard(self, one: Background) -> None:
        """Removes one, if it is in."""
        with self._lock:
            self._all = self._without(one)

    def advance(self) -> None:
        """Advances all."""
        for each in self._all:
            one = each()
            if one is not None:
                one.advance()

    def _without(self, one: Background) -> "tuple[weakref.ref[Background], ...]":
        return tuple(each for each in self._all if each() not in (None, one))


BACKGROUND = Backgrounds()
"""What every wait of this process advances: another rank may wait for it first."""
