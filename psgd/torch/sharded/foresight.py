"""Which unit comes next: passes gather units in the order of the pass before."""

from collections.abc import Sequence


class Foresight:
    """The order in which a kind of pass gathers, learned from the last one. The same on all ranks whose passes are."""

    def __init__(self) -> None:
        self._last: Sequence[int] = ()
        self._now: list[int] = []
        self._at = 0

    def asked(self, unit: int) -> int | None:
        """A pass has gathered this unit; returns what it will gather next, or None where that is not known."""
        self._now.append(unit)
        at = self._find(unit)
        if at is None:
            return None
        self._at = at + 1
        return self._last[self._at] if self._at < len(self._last) else None

    def begin(self) -> None:
        """The next pass begins: this one was as it will be."""
        if self._now:
            self._last, self._now = self._now, []
        self._at = 0

    def _find(self, unit: int) -> int | None:
        for start in (self._at, 0):
            for at in range(start, len(self._last)):
                if self._last[at] == unit:
                    return at
        return None
