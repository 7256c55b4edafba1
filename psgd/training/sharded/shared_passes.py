"""What a backend does differently where its model's units come and go with an exchange."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.kernels.array import Array
from psgd.nn.stage import OnReady
from psgd.parallel.sharded import by_unit
from psgd.parallel.sharded.exchange import Exchange


class Passes:
    """What differs from the backend that this stands in front of, among a class's bases.

    All its calls but `bind` are collective: `gradient` is one pass, announced by `psgd.connect`'s worker or, before the
    run, by itself, and `evaluate` as many passes on each worker.
    """

    _at_once: int
    _test: Any

    def passes_through(self, exchange: Exchange) -> None:
        """Sets the exchange; to be called first."""
        self._exchange, self._ready = exchange, by_unit.on_ready(exchange)

    def bind(self, params: Array, grads: Array) -> None:
        """Nothing: parameters and gradients are where the exchange has them."""

    def gradient(
        self,
        indices: NDArray[np.int64],
        on_ready: OnReady | None = None,
        touch: Callable[[Array], None] | None = None,
    ) -> Any:
        exchange, announced = self._exchange, self._exchange.announced
        if not announced:
            exchange.begin(len(indices))
        loss = super().gradient(indices, on_ready or self._ready, touch)  # type: ignore[misc]  # of the class behind
        if not announced:
            exchange.finish()
        return loss

    def evaluate(self, part: int, parts: int) -> tuple[float, float]:
        result: tuple[float, float] = super().evaluate(part, parts)  # type: ignore[misc]  # of the class behind
        samples, step = self._test.samples, self._at_once
        mine = len(range(part * step, samples, parts * step))
        for _ in range(mine, len(range(0, samples, parts * step))):
            self._exchange.pass_by(trains=False)
        return result
