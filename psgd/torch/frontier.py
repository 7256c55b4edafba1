"""From single gradients, in whatever order backward makes them, to ranges from the vector's end to its start."""

from collections.abc import Callable, Sequence

from psgd.kernels.errors import UsageError


class Frontier:
    """What of one gradient is final.

    Args:
        offsets: of each slot's first element, ascending from 0.
        size: of the vector.
    """

    def __init__(self, offsets: Sequence[int], size: int) -> None:
        self._offsets, self._size = offsets, size
        self._ready: Callable[[range], None] | None = None
        self._final = [False] * len(offsets)
        self._next, self._end = len(offsets) - 1, size

    @property
    def open(self) -> bool:
        """Whether a backward pass announces its ranges."""
        return self._ready is not None

    def begin(self, ready: Callable[[range], None]) -> None:
        """The next gradient's ranges go to `ready`."""
        self._ready = ready
        self._final = [False] * len(self._offsets)
        self._next, self._end = len(self._offsets) - 1, self._size

    def is_final(self, slot: int) -> bool:
        """Whether this slot's gradient was passed to `done`; it may be on its way already."""
        return self._final[slot]

    def done(self, slot: int) -> None:
        """A slot's gradient is final: announces it, once all behind it are final too.

        Raises:
            UsageError: it was final before.
        """
        if self._final[slot]:
            raise UsageError(
                "overlap: expected one backward() between overlap() and step(), got a second: call overlap() only "
                "before the last one"
            )
        self._final[slot] = True
        while self._next >= 0 and self._final[self._next]:
            self._next -= 1
        start = self._offsets[self._next + 1] if self._next + 1 < len(self._offsets) else self._size
        if start < self._end and self._ready is not None:
            part, self._end = range(start, self._end), start
            self._ready(part)

    def end(self) -> None:
        """The gradient is complete; nothing more is announced."""
        if self._ready is not None:
            self._ready = None
            self._final = [False] * len(self._offsets)
