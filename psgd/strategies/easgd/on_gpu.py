"""EASGD in its first form: workers on GPUs, the centre on the host.

Zhang, Choromanska and LeCun (2015); You, Buluc and Demmel (2017). A worker's steps need the host only where it meets
the centre.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from psgd.backend import pinned
from psgd.kernels.array import Array
from psgd.strategies.easgd.exchange_order import ExchangeOrder
from psgd.worker.context import RunContext


class OnHost:
    """Implements `ExchangeOrder`; what is not here is that of the order on the host.

    Args:
        context: with parameters on a GPU.
        *more: what an order is made with besides.
        order: called with both, parameters on the host.

    Attributes:
        displacement: on the GPU.
    """

    def __init__(self, context: RunContext, *more: Any, order: Callable[..., ExchangeOrder]) -> None:
        self._params = context.params
        self._host = pinned.empty(self._params.shape, self._params.dtype)
        self._order: Any = order(replace(context, params=self._host), *more)
        self._pins = pinned.Pin(self._order.displacement)
        self.displacement: Array = np.zeros_like(self._params)
        self._centre: Array = np.empty_like(self._params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._order, name)

    @property
    def centre(self) -> Array:
        """A copy, as the host's order knows the centre now."""
        pinned.upload(self._centre, self._order.centre)
        pinned.wait()
        return self._centre

    def begin(self, resumed: bool) -> None:
        pinned.download(self._host, self._params)
        pinned.wait()
        self._order.begin(resumed)
        pinned.upload(self._params, self._host)
        pinned.wait()

    def note(self, samples: int, loss: float) -> None:
        self._order.note(samples, float(loss))

    def pull(self, rate: float, lr: float) -> None:
        """The displacement goes to the GPU while this process sends."""
        pinned.download(self._host, self._params)
        pinned.wait()
        self._order.pull(rate, lr)
        pinned.upload(self.displacement, self._order.displacement)

    def finish(self, waited_s: float) -> None:
        pinned.wait()
        self._order.finish(waited_s)
        self._pins.release()
