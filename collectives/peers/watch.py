"""Looks after kernels that nobody waits for: on a stream or in a CUDA graph, they would spin for a dead peer."""

import threading
from collections.abc import Callable

from psgd.collectives.peers.group import WAITING, PeerGroup

_LOOK_S = 0.1


class PeerWatch:
    """A thread that sleeps, and ends a group's calls once a rank is lost that one of them has waited for.

    Args:
        group: of the calls.
        lost: whether some rank has ended or left a call before its end.
    """

    def __init__(self, group: PeerGroup, lost: Callable[[], bool]) -> None:
        self._group, self._lost = group, lost
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="psgd-peer-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._ends.set()
        self._thread.join()

    def _serve(self) -> None:
        while not self._ends.wait(_LOOK_S):
            if not self._group.host[WAITING]:
                continue
            self._group.host[WAITING] = 0  # a kernel that still waits sets it again within a fraction of a millisecond
            if self._lost():
                self._group.order_end()
