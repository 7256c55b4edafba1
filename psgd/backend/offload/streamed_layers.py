"""Two layers' parameters and gradients on the GPU; all others are on the host.

Layers with parameters take turns in two slots. While one is computed, the next one's parameters come, and in backward
the gradient of the one before goes. The two that forward needs last are there when backward begins.
"""

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from psgd.backend.offload import bus as bus_module
from psgd.backend.offload.arrivals import Arrivals
from psgd.backend.offload.bus import Bus, Moment
from psgd.nn.gates import apart
from psgd.nn.gates.gated import gated
from psgd.nn.model import Model
from psgd.optim.host_updates import HostUpdates

OnReady = Callable[[range], None]


class StreamedLayers:
    """Implements `psgd.nn.gates.gated.Gate`.

    Args:
        model: on no vector yet.
        bus: to the GPU.
        updates: who takes steps by parts; None: others do, and `begin` finds all parameters new.

    Attributes:
        model: the same, on the GPU.
    """

    def __init__(self, model: Model, bus: Bus, updates: HostUpdates | None = None) -> None:
        self.model = gated(model, self, bus.launcher)
        self._layers = apart.parts(model)
        self._number = {each.index: number for number, each in enumerate(self._layers)}
        self._by_own = {each.own: number for number, each in enumerate(self._layers) if each.own}
        self._bus, self._updates = bus, updates or HostUpdates(0)
        if updates is not None:
            updates.units, updates.followed = tuple(piece for own in self._by_own for piece in self._cut(own)), True
        count, dtype = min(2, len(self._layers)), model.dtype
        most, own = max(each.size for each in self._layers), max(len(each.own) for each in self._layers)
        self._params = [bus.device(most, dtype) for _ in range(count)]
        self._grads = [bus.device(own, dtype) for _ in range(count)]
        turns = [number % count for number in range(len(self._layers))]
        places = [self._params[turn] for turn in turns], [self._grads[turn] for turn in turns]
        apart.bind(self.model, self._layers, *places)
        self._slots = count
        self._host: tuple[NDArray[Any], NDArray[Any]] | None = None
        self._pins: Any = None
        self._held: list[int | None] = [None] * count  # which layer's parameters are in each slot
        self._come: list[Moment | None] = [None] * count  # when they have come
        self._used: list[Moment | None] = [None] * count  # when the last pass was done with them
        self._gone: list[Moment | None] = [None] * count  # when the gradient has left its slot
        self._arrivals = Arrivals()
        self._on_ready: OnReady | None = None

    def _cut(self, part: range) -> list[range]:
        return apart.pieces(part, bus_module.PIECE)

    def bind(self, params: NDArray[Any], grads: NDArray[Any]) -> None:
        """Uses these vectors on the host."""
        if self._host is None or self._host[0] is not params or self._host[1] is not grads:
            self._host = params, grads
            self._pins = None  # releases what may be pinned again
            self._pins = self._bus.pin(params, grads)

    def begin(self, on_ready: OnReady | None = None) -> None:
        """A pass begins: all parameters on the host are new, or will be."""
        self._on_ready = on_ready
        self._held = [None] * self._slots

    def enter(self, index: int, backward: bool) -> None:
        number = self._number.get(index)
        if number is None:
            return
        slot = number % self._slots
        self._fetch(number)
        if (come := self._come[slot]) is not None:
            self._bus.hold(come)
            self._come[slot] = None
        if backward and (gone := self._gone[slot]) is not None:
            self._bus.hold(gone)
            self._gone[slot] = None

    def leave(self, index: int, backward: bool) -> None:
        number = self._number.get(index)
        if number is None:
            return
        self._used[number % self._slots] = self._bus.mark()
        following = number - 1 if backward else number + 1
        if 0 <= following < len(self._layers):
            self._fetch(following)

    def _fetch(self, number: int) -> None:
        """Starts copying a layer's parameters into its slot, unless they are there."""
        slot = number % self._slots
        if self._held[slot] == number:
            return
        assert self._host is not None
        start = 0
        for part in self._layers[number].parts:
            for piece in self._cut(part):
                self._updates.wait(piece)
                there = self._params[slot][start : start + len(piece)]
                self._come[slot] = self._bus.up(there, self._host[0][piece.start : piece.stop], self._used[slot])
                start += len(piece)
        self._held[slot] = number

    def ready(self, own: range) -> None:
        """Backward has made this layer's gradient."""
        assert self._host is not None
        slot = self._by_own[own] % self._slots
        made = self._bus.mark()
        for piece in reversed(self._cut(own)):
            gradient = self._grads[slot][piece.start - own.start : piece.stop - own.start]
            self._gone[slot] = gone = self._bus.down(self._host[1][piece.start : piece.stop], gradient, made)
            self._arrivals.add(piece, gone)
        self._arrivals.take(self._on_ready)

    def finish(self) -> None:
        """Returns once the whole gradient is on the host, and all of it handed over."""
        self._arrivals.take(self._on_ready, all_of_them=True)
