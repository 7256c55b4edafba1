"""Parameters and gradient on the GPU, beside the vectors on the host that the optimizer works on.

In backward a layer's gradient is copied to the host once it is made, while the layers before it are computed. In
forward a layer waits, on the GPU, for its own new parameters alone. Who updates by parts has them copied to the GPU at
once; else they are all copied in the order of the layers, while forward runs.
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
from psgd.optim.host_updates import HostUpdates, overlap

OnReady = Callable[[range], None]


class KeptLayers:
    """Implements `psgd.nn.gates.gated.Gate`.

    With `behind` 1 a layer's new parameters are taken up in the backward pass of the next step, once their old values
    are used up. So every step but the first computes with parameters that lack exactly the newest update, and the host
    has the time of a whole step for it.

    Args:
        model: on no vector yet.
        bus: to the GPU.
        updates: who takes steps by parts; None: others do, and `begin` finds all parameters new.
        behind: how many updates parameters on the GPU are behind.

    Attributes:
        model: the same, on the GPU.
    """

    def __init__(self, model: Model, bus: Bus, updates: HostUpdates | None = None, behind: int = 0) -> None:
        self.model = gated(model, self, bus.launcher)
        layers = apart.parts(model)
        self._pieces = {each.own: apart.pieces(each.own, bus_module.PIECE) for each in layers}
        self._units = tuple(unit for each in layers for unit in self._pieces[each.own])
        self._needs = {each.index: self._of(each) for each in layers}
        self._bus, self._behind = bus, behind
        self._updates = updates or HostUpdates(0)
        self._all_new = updates is None
        if updates is not None:
            updates.units, updates.followed = self._units, True
            updates.on_done = None if behind else self._renew
        self._params, self._grads = (bus.device(model.layout.size, model.dtype) for _ in range(2))
        self.model.bind(self._params, self._grads)
        self._host: tuple[NDArray[Any], NDArray[Any]] | None = None
        self._pins: Any = None
        self._stale = True
        self._up: dict[range, Moment] = {}
        self._arrivals = Arrivals()
        self._on_ready: OnReady | None = None

    def _of(self, layer: apart.LayerParts) -> tuple[range, ...]:
        """The units that have a layer's parameters."""
        return tuple(unit for unit in self._units if any(overlap(unit, part) for part in layer.parts))

    def bind(self, params: NDArray[Any], grads: NDArray[Any]) -> None:
        """Uses these vectors on the host; others than before are copied as a whole."""
        if self._host is None or self._host[0] is not params or self._host[1] is not grads:
            self._host, self._stale = (params, grads), True
            self._pins = None  # releases what may be pinned again
            self._pins = self._bus.pin(params, grads)

    def begin(self, on_ready: OnReady | None = None) -> None:
        """A pass begins."""
        self._on_ready = on_ready
        if self._stale or self._all_new or self._updates.settled:
            self._stale = self._updates.settled = False
            self._updates.wait()
            used = self._bus.mark()
            for unit in self._units:
                self._renew(unit, used)

    def _renew(self, unit: range, after: Moment | None = None) -> None:
        """Starts copying new parameters to the GPU; without `after`, where the GPU is known to be done with the old."""
        assert self._host is not None
        here = slice(unit.start, unit.stop)
        self._up[unit] = self._bus.up(self._params[here], self._host[0][here], after)

    def enter(self, index: int, backward: bool) -> None:
        if backward:
            return
        for unit in self._needs.get(index, ()):
            if not self._behind:
                self._updates.wait(unit)
            if (coming := self._up.pop(unit, None)) is not None:
                self._bus.hold(coming)

    def leave(self, index: int, backward: bool) -> None:
        pass

    def ready(self, own: range) -> None:
        """Backward has made this layer's gradient, and uses its parameters no more."""
        for unit in reversed(self._pieces[own]):
            self._send(unit)
        self._arrivals.take(self._on_ready)

    def _send(self, unit: range) -> None:
        assert self._host is not None
        here = slice(unit.start, unit.stop)
        if self._behind:
            self._updates.wait(unit)  # the step before has done with the gradient on the host
        made = self._bus.mark()
        moments = [self._bus.down(self._host[1][here], self._grads[here], made)]
        if self._behind:
            self._renew(unit, made)
            moments.append(self._up[unit])  # the next update writes what this copy reads
        self._arrivals.add(unit, *moments)

    def finish(self) -> None:
        """Returns once the whole gradient is on the host, and all of it handed over."""
        self._arrivals.take(self._on_ready, all_of_them=True)
