"""One call of peers: its kernel started on the caller's stream, and the host's wait for it."""

import time
from collections.abc import Callable
from typing import Any

import cupy

from psgd.collectives.arguments.call import Call
from psgd.collectives.mpi.wait import Steps
from psgd.collectives.peers import calls
from psgd.collectives.peers.group import VERDICT, PeerGroup
from psgd.collectives.shm.shared_channel import SharedChannel
from psgd.kernels.device.events import over
from psgd.kernels.device.peers.common import LOST
from psgd.kernels.errors import UsageError

_COPY = cupy.cuda.runtime.memcpyDeviceToDevice
_LOOKS = 256  # at the event, between two at the other ranks
_GRACE_S = 0.3  # a kernel may end a little after its peers': only then are they in another call


class PeerRun:
    """A call on device arrays, which all ranks have made alike as far as this one knows.

    Args:
        group: of this node's GPUs.
        call: what this rank passed.
        sign: its signature.
        ahead: whether another rank is in a later call on the host.

    Attributes:
        kernel: its name.
        needs_memory: `get_memory` must be called first.
        made: the kernel, once it was started.
        captured: it has become part of a CUDA graph.
        verdict: not 0 where the call has ended without data, on all ranks.
    """

    def __init__(self, group: PeerGroup, call: Call, sign: int, ahead: Callable[[], bool]) -> None:
        self._group, self._call, self._sign, self._ahead = group, call, sign, ahead
        self.kernel = calls.shape_of(group.size, call).kernel
        self.needs_memory = self.kernel == "staged" and not group.wide
        self.made: calls.PeerCall | None = None
        self.captured = False
        self.verdict = 0

    def get_memory(self) -> None:
        """Gets what is missing for large calls. Collective, blocks.

        Raises:
            MemoryError: some rank could not, on all ranks.
        """
        if self.needs_memory and not self._group.widen():
            raise MemoryError(f"{self._call.verb}: not enough GPU memory for the exchange of large arrays on some rank")

    def steps(self) -> Steps:
        """Starts it and waits, unless the stream is being captured in a CUDA graph, of which it then becomes a part."""
        group, job = self._group, self._call.job
        stream = job.recv.stream
        with cupy.cuda.Device(group.device):
            made = self.made = calls.prepare(group, self._call, self._sign)
            if capturing(stream):
                if job.recv.strided:
                    raise UsageError(f"{self._call.verb}: expected a contiguous array in a CUDA graph; pass a copy")
                launch(made, stream)
                self.captured = True
                return
            for view in (job.send, job.recv):
                if view.stream != stream:
                    cupy.cuda.runtime.streamWaitEvent(stream, view.ready.ptr)
            group.follow(stream)
            launch(made, stream)
            wait = PeerWait(group, group.started(stream), self._ahead)
        yield wait
        self.verdict = wait.verdict
        copies = made.copy[2] or job.send.strided or job.recv.strided  # of memory that is another the next time
        if job.repeats and not self.verdict and not copies:
            job.made = made


class PeerWait:
    """A test: whether a started call is done.

    Args:
        group: of the call.
        event: behind it.
        ahead: as of `PeerRun`.

    Attributes:
        verdict: once it is done: not 0 where it ended without data.

    Raises (when called):
        CUDARuntimeError: this rank's kernel, or another one on its GPU, has failed.
    """

    def __init__(self, group: PeerGroup, event: Any, ahead: Callable[[], bool]) -> None:
        self._group, self._event, self._ahead = group, event, ahead
        self._looks = 0
        self._since: float | None = None
        self._ordered = False
        self.verdict = 0

    def __call__(self) -> bool:
        with cupy.cuda.Device(self._group.device):  # else CUDA makes a context on the first GPU for a new thread
            done = over(self._event)
        if done:
            if self._ordered or self._group.host[VERDICT]:
                self.verdict = self._group.forgive() or LOST
            return True
        self._looks += 1
        if self._looks % _LOOKS == 0 and not self._ordered:
            self._look()
        return False

    def _look(self) -> None:
        """Ends the call if a peer has been in another one for long: it will never come."""
        if not self._ahead():
            self._since = None
            return
        now = time.perf_counter()
        self._since = self._since or now
        if now - self._since > _GRACE_S:
            self._group.order_end()
            self._ordered = True


class Ahead:
    """Whether another rank of the node is in a later call on the host than this one.

    Args:
        shared: the ranks' words.
    """

    def __init__(self, shared: SharedChannel | None) -> None:
        self._shared = shared

    def __call__(self) -> bool:
        return self._shared is not None and self._shared.ahead()


def launch(made: calls.PeerCall, stream: int) -> None:
    """Starts a call, and the copy of its result where there is one, on a stream of the current device."""
    made.start(stream)
    to, source, nbytes = made.copy
    if nbytes:
        cupy.cuda.runtime.memcpyAsync(to, source, nbytes, _COPY, stream)


def capturing(stream: int) -> bool:
    """Whether what is started on a stream becomes part of a CUDA graph."""
    return bool(stream and cupy.cuda.runtime.streamIsCapturing(stream))
