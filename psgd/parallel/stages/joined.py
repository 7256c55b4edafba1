"""Several stages of one rank in one vector: layouts one after the other, and gradients that are ready in order."""

from collections.abc import Sequence

from psgd.nn.layout import Layout
from psgd.nn.stage import OnReady


def join(layouts: Sequence[Layout]) -> tuple[Layout, list[range]]:
    """Returns the layout of all, and which part of its vector each one is."""
    joined = Layout(
        [(p.name, p.shape) for layout in layouts for p in layout.parameters],
        parts={p.name: (p.global_shape, p.start) for layout in layouts for p in layout.parameters},
        tied={name: same for layout in layouts for name, same in layout.tied},
        torch={name: form for layout in layouts for name, form in layout.torch},
    )
    ranges, start = [], 0
    for layout in layouts:
        ranges.append(range(start, start + layout.size))
        start += layout.size
    return joined, ranges


class InOrder:
    """Passes ranges of a vector on from its end to its start, whatever the order in which they come.

    Args:
        size: of the vector.
        on_ready: who is told.
        held: parts that are not final with their range, but with `release` only.
    """

    def __init__(self, size: int, on_ready: OnReady, held: Sequence[range] = ()) -> None:
        self._on_ready, self._stop = on_ready, size
        self._early: dict[int, range] = {}
        self._held, self._waiting = tuple(held), list[range]()

    def ready(self, part: range) -> None:
        """This part is final, but for what is held."""
        if any(part.start < held.stop and held.start < part.stop for held in self._held):
            self._waiting.append(part)
        else:
            self._pass(part)

    def release(self) -> None:
        """What was held is final too."""
        for part in self._waiting:
            self._pass(part)
        self._waiting.clear()

    def shifted(self, offset: int) -> OnReady:
        """Returns `ready` for ranges that are counted from `offset`."""
        return lambda part: self.ready(range(part.start + offset, part.stop + offset))

    def _pass(self, part: range) -> None:
        self._early[part.stop] = part
        while (found := self._early.pop(self._stop, None)) is not None:
            self._stop = found.start
            self._on_ready(found)
