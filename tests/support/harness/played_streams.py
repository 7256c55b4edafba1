"""The streams of a GPU on which units are exchanged, with a witness of races: nothing is computed, all is ordered."""

import contextlib
from collections.abc import Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from harness.played_bus import PlayedBus, Race
from psgd.parallel.sharded import near_gathers, peer_gathers
from psgd.parallel.sharded.order import SideStream
from psgd.parallel.sharded.peer_gathers import PeerGathers
from psgd.parallel.sharded.pieces import piece_exchange
from psgd.parallel.sharded.scatters import Scatters

__all__ = ["PlayedComm", "PlayedStreams", "Race"]


class PlayedStreams(PlayedBus):
    """As `PlayedBus`, with any number of streams.

    Attributes:
        current: the one on which work is put.
    """

    def __init__(self) -> None:
        super().__init__()
        self.current = "compute"

    def side(self, like: Any) -> "PlayedSide":
        """A new stream, in place of `psgd.parallel.sharded.order.behind`."""
        return PlayedSide(self, f"side {len(self.clocks)}")

    def put(self, reads: Sequence[Any] = (), writes: Sequence[Any] = ()) -> None:
        """Work on the current stream."""
        self.use(self.current, [each for each in reads if each.size], [each for each in writes if each.size])

    def play(self, patch: Any, peers: bool) -> None:
        """Has exchanges of pieces take this for their GPU.

        Args:
            patch: pytest's `MonkeyPatch`.
            peers: copy engines gather; else collectives do.
        """
        cupy = ModuleType("cupy")
        runtime = SimpleNamespace(memcpyDefault=4, memcpyAsync=lambda to, source, *_: self.put([source], [to]))
        cupy.cuda = SimpleNamespace(runtime=runtime, get_current_stream=lambda: SimpleNamespace(ptr=0))  # type: ignore[attr-defined]
        cupy.zeros = np.zeros  # type: ignore[attr-defined]
        patch.setitem(__import__("sys").modules, "cupy", cupy)
        patch.setattr(piece_exchange, "behind", self.side)
        patch.setattr(near_gathers, "possible", lambda *_: False)
        patch.setattr(peer_gathers, "_copies", lambda slices, own, whole, *_: _by_unit(own, whole))
        patch.setattr(peer_gathers, "_unmap", lambda vectors: None)
        mapped = [peer_gathers._Mapped(0, 0)]

        def create(comm: Any, slices: Any, params: Any, own: Any, whole: Any, side: Any) -> PeerGathers | None:
            return PeerGathers(comm, slices, own, whole, side, mapped) if peers else None

        patch.setattr(peer_gathers, "create", create)
        before = Scatters.wait

        def weigh(_: Scatters, grad: Any, samples: int) -> None:
            self.put([grad], [grad])

        def wait(scatters: Scatters, unit: int) -> None:
            came = unit in scatters._coming
            before(scatters, unit)
            if came and scatters._arriving is not None:
                self.put([scatters._arriving[unit]], [scatters._own[unit]])

        patch.setattr(Scatters, "weigh", weigh)
        patch.setattr(Scatters, "wait", wait)


def _by_unit(own: Sequence[Any], whole: Sequence[Any]) -> list[list[tuple[Any, Any, int]]]:
    return [[(unit, part, 0)] for part, unit in zip(own, whole, strict=True)]


class PlayedSide(SideStream):
    """One more stream."""

    def __init__(self, bus: PlayedStreams, name: str) -> None:
        self._bus, self._name, self.last = bus, name, None
        bus.clocks[name] = {}

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        bus = self._bus
        bus.learn(self._name, bus.clocks[bus.current])
        before, bus.current = bus.current, self._name
        yield
        bus.current = before

    def event(self) -> "PlayedEvent":
        return PlayedEvent(self._bus)

    def follow(self, event: Any) -> None:
        self._bus.learn(self._bus.current, event.clock)

    def synchronize(self) -> None:
        self._bus.learn("host", self._bus.clocks[self._name])


class PlayedEvent:
    """What has been put on a stream so far."""

    def __init__(self, bus: PlayedStreams) -> None:
        self._bus = bus
        self.clock: dict[str, int] = {}

    def record(self) -> None:
        """Marks it."""
        self.clock = dict(self._bus.clocks[self._bus.current])


class PlayedComm:
    """A communicator whose persistent calls are put on the current stream; the first rank of `size`.

    Attributes:
        started: the calls in their order: which of all that it has.
    """

    rank, nodes = 0, 1

    def __init__(self, bus: PlayedStreams, size: int) -> None:
        self._bus, self.size = bus, size
        self.started: list[int] = []
        self._calls = 0

    def empty(self, shape: Any, dtype: Any) -> Any:
        """Memory at an address of its own."""
        return self._bus.device(shape, dtype)

    def Reduce_scatter_init(self, whole: Any, part: Any, counts: Any) -> "PlayedCall":
        """As of a communicator."""
        return self._call([whole], [part])

    def Allgatherv_init(self, part: Any, into: Any) -> "PlayedCall":
        """As of a communicator; the part may lie in its place."""
        return self._call([part], [into[0]])

    def Allreduce_init(self, part: Any, into: Any) -> "PlayedCall":
        """As of a communicator."""
        return self._call([part], [into])

    def _call(self, reads: Sequence[Any], writes: Sequence[Any]) -> "PlayedCall":
        self._calls += 1
        return PlayedCall(self._bus, reads, writes, self._calls, self.started)


class PlayedCall:
    """A call that can be put on a stream."""

    def __init__(
        self, bus: PlayedStreams, reads: Sequence[Any], writes: Sequence[Any], number: int, started: list[int]
    ) -> None:
        self._bus, self._reads, self._writes = bus, reads, writes
        self._number, self._started = number, started
        self._event = PlayedEvent(bus)

    def Enqueue(self) -> bool:
        """Puts it there."""
        self._started.append(self._number)
        self._bus.put(self._reads, self._writes)
        self._event.record()
        return True

    def Wait(self) -> None:
        """The host waits for it."""
        self._bus.learn("host", self._event.clock)

    def Free(self) -> None:
        """Nothing."""
