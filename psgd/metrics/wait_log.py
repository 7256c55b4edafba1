"""Who waited for whom, as rows for a run's log."""

from typing import Any

FLOOR_S = 1e-3
"""Shorter waits get no row."""

LARGEST = 20_000
"""Most rows of a run."""


class WaitLog:
    """Who waited for whom since the last `take`."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._room = LARGEST

    def add(self, worker: int, other: int, start_s: float, stop_s: float) -> None:
        """Keeps a wait, in seconds since the start, unless it is too short or there were too many."""
        if stop_s - start_s < FLOOR_S:
            return
        if self._room > 0:
            self._fields.setdefault("rows", []).append((worker, other, round(start_s, 6), round(stop_s, 6)))
        elif self._room == 0:
            self._fields["stopped"] = stop_s
        self._room -= 1

    def take(self) -> dict[str, Any]:
        """Hands over what is new, as fields of a line of the log.

        Returns:
            `rows`, a list of (worker, whom it waited for, from, to), and `stopped`, the end of the first wait for which
            there was no room; what there is of them.
        """
        fields, self._fields = self._fields, {}
        return fields
