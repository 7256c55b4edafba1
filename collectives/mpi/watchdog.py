"""What every wait of this process advances between two tests: another rank may wait for that first."""

import threading
import weakref
from typing import Protocol


class Background(Protocol):
    """What goes on beside the current call."""

    def advance(self) -> None:
        """Does what can be done now."""


class Backgrounds:
    """Some of them, none of which is kept alive. Threads may add and take away while others advance them."""

    def __init__(self) -> None:
        self._all: tuple[weakref.ref[Background], ...] = ()
        self._lock = threading.Lock()

    def add(self, one: Background) -> None:
        """Adds one, unless it is there."""
        with self._lock:
            self._all = (*self._without(one), weakref.ref(one))

    def discard(self, one: Background) -> None:
        """Takes one away, if it is there."""
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
"""Whatever every wait of this process carries forward: another rank may wait for it first."""
