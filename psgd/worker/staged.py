"""Parameters and gradient on a GPU, in front of a strategy that has them on the host: two copies a step."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from psgd.backend import pinned
from psgd.backend.offload.arrivals import Arrivals
from psgd.backend.offload.bus import Bus, CudaBus
from psgd.kernels.array import Array

if TYPE_CHECKING:
    from psgd.worker.interface import Worker


class Staged:
    """A worker. Implements `psgd.worker.interface.Worker`; what is not here is the host's worker's.

    A step copies the gradient to the host, takes the step there, and starts copying the parameters back: the next
    gradient waits for them on the GPU, not this process. Both host vectors are page-locked where they lie.

    Args:
        client: on the host, not started.
        params: the caller's, on the GPU; final when `finish` returns.
        by_parts: parts of the gradient are copied as `overlap`'s function is told of them, and the host's worker is
            told as they arrive.

    Attributes:
        params: as given.
        grads: on the GPU, zero at first.
        copied_s: seconds spent in waiting for the gradient and its copy.
    """

    def __init__(self, client: "Worker", params: Array, by_parts: bool = False) -> None:
        self._client, self.params, self._by_parts = client, params, by_parts
        self._bus: Bus | None = None
        self._arrivals = Arrivals()
        self._on_ready: Callable[[range], None] | None = None
        self._final = params.size  # the gradient's elements from here on are on their way
        self.grads: Array = np.zeros_like(params)
        self._pins = pinned.Pin(client.params, client.grads)  # the first may be so already
        self._evaluated: Array = None
        self.copied_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    @property
    def evaluated_params(self) -> Array:
        """What to evaluate: a copy of the host's, where that is not `params`."""
        chosen = getattr(self._client, "evaluated_params", None)
        if chosen is None:
            return self.params
        if self._evaluated is None:
            self._evaluated = np.empty_like(self.params)
        self._evaluated.set(chosen)
        return self._evaluated

    def start(self) -> None:
        self._client.start()
        pinned.upload(self.params, self._client.params)

    def overlap(self, samples: int) -> Callable[[range], None] | None:
        """None where the host gets the gradient as a whole."""
        self._on_ready = self._client.overlap(samples) if self._by_parts else None
        if self._on_ready is None:
            return None
        self._bus = self._bus or CudaBus()
        return self._ready

    def _ready(self, part: range) -> None:
        """This part of the gradient will be complete when the current stream has come here."""
        assert self._bus is not None
        if part:
            here = slice(part.start, part.stop)
            self._arrivals.add(part, self._bus.down(self._client.grads[here], self.grads[here], self._bus.mark()))
            self._final = part.start
        self._arrivals.take(self._on_ready)

    def step(self, samples: int, loss: float) -> None:
        began = time.perf_counter()
        if samples and self._final:
            pinned.download(self._client.grads[: self._final], self.grads[: self._final])
        self._arrivals.take(self._on_ready, all_of_them=True)
        self._final = self.params.size
        pinned.wait()  # for the parameters' copy as well, which are about to change
        self.copied_s += time.perf_counter() - began
        self._client.step(samples, float(loss))
        pinned.upload(self.params, self._client.params)

    def finish(self) -> None:
        pinned.wait()
        self._client.finish()
        pinned.upload(self.params, self._client.params)
        pinned.wait()
        self._pins.release()


def host_copy(params: Array) -> NDArray[Any]:
    """Its values in page-locked memory."""
    host = pinned.empty(params.shape, params.dtype)
    pinned.download(host, params)
    pinned.wait()
    return host
