"""Parts of a gradient that are on their way to the host, handed over in the order in which backward made them."""

from collections import deque
from collections.abc import Callable

from psgd.backend.offload.bus import Moment


class Arrivals:
    """Of one gradient after the other."""

    def __init__(self) -> None:
        self._coming: deque[tuple[range, tuple[Moment, ...]]] = deque()

    def add(self, part: range, *moments: Moment) -> None:
        """A part is there once all these moments have passed."""
        self._coming.append((part, moments))

    def take(self, on_ready: Callable[[range], None] | None, all_of_them: bool = False) -> None:
        """Hands over what is there; or all, and then blocks until it is."""
        while self._coming:
            part, moments = self._coming[0]
            for moment in moments:
                if all_of_them:
                    moment.wait()
                elif not moment.passed():
                    return
            self._coming.popleft()
            if on_ready is not None:
                on_ready(part)
