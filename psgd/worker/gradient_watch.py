"""What becomes of a gradient that is not finite: one warning that names rank and step, left out, or the end."""

from collections.abc import Callable

import numpy as np

from psgd.kernels.array import Array, array_module
from psgd.kernels.errors import DivergedError
from psgd.kernels.finite import all_finite, finite, part_finite
from psgd.kernels.notice import say
from psgd.runtime.device_vectors import on_device
from psgd.worker.interface import Worker

PARTS, ON_DEVICE = 16, 64
"""Where only a warning depends on it: what share of a large vector is looked at in each step, another one each time;
and steps from one look to the next at a vector on a GPU, which a look waits for."""
LARGE_BYTES = 1 << 16


class GradientWatch:
    """One worker's.

    Args:
        on_nan: "warn", "skip" or "stop".
        rank: of this process.
        worker: its index.
        leaves_out: the strategy omits gradients that are not finite in any case, as a codec cannot send them.

    Attributes:
        looks_well: whether all that it looks at is finite; called with the worker, the number of the step, and whether
            `overlapping` has looked at the gradient. Where not all elements are looked at, also at parameters.
        exact: each look is at all elements, and there is one in each step.
        skipped: gradients left out.
    """

    def __init__(self, on_nan: str, rank: int, worker: int, leaves_out: bool) -> None:
        self.skipped, self.exact = 0, True
        self.looks_well: Callable[[Worker, int, bool], bool] = self._whole_look
        self._given: Array | None = None
        self._every = 1
        self._saw = False  # `overlapping`, something that is not finite
        self._on_nan, self._leaves_out = on_nan, leaves_out
        self._who, self._leads = f"rank {rank} (worker {worker})", worker == 0
        self._warned = False

    @property
    def acts(self) -> bool:
        """Whether the gradient has to be looked at as a whole before any of it is sent."""
        return self._on_nan != "warn"

    def begin(self, grads: Array) -> None:
        """Chooses the look for gradients like the caller's parameters, and how often; compiles what it needs."""
        self._given = grads
        holds_numbers(grads[:0])
        part_finite(np.empty(0, grads.dtype), 0, PARTS)
        if not self.acts and not self._leaves_out and (on_device(grads) or grads.nbytes > LARGE_BYTES):
            self.exact = False
        if on_device(grads):
            self._every = 1 if self.exact else ON_DEVICE
            self.looks_well = self._look_on_device
        elif not self.exact:
            self.looks_well = self._part_look

    def overlapping(
        self, ready: Callable[[range], None], grads: Array, step: int, at: Callable[[range], Array] | None = None
    ) -> Callable[[range], None]:
        """`ready` for parts of a gradient that are sent while the rest is computed: looks at each before it is sent.

        Args:
            ready: to be called with each part.
            grads: the gradient.
            step: this worker's.
            at: gives a part where it does not lie in `grads`.
        """
        if on_device(grads) and not self.acts:
            return ready

        def look_and_send(part: range) -> None:
            found = grads[part.start : part.stop] if at is None else at(part)
            parts = 1 if self.exact else PARTS
            well = holds_numbers(found) if on_device(found) else part_finite(found, step, parts)
            self._saw = self._saw or not well
            ready(part)

        return look_and_send

    def _whole_look(self, worker: Worker, step: int, overlapped: bool) -> bool:
        return not self._saw if overlapped else bool(finite(worker.grads))

    def _part_look(self, worker: Worker, step: int, overlapped: bool) -> bool:
        if self._saw or not (overlapped or part_finite(worker.grads, step, PARTS)):
            return False
        return bool(part_finite(worker.params, step, 2 * PARTS))

    def _look_on_device(self, worker: Worker, step: int, overlapped: bool) -> bool:
        if overlapped and self.acts:
            return not self._saw
        return step % self._every != 0 or holds_numbers(worker.params if overlapped else worker.grads)

    def found(self, params: Array, step: int, samples: int) -> int:
        """A gradient is not finite.

        Args:
            params: that it was computed on.
            step: this worker's, from 1.
            samples: behind it.

        Returns:
            The samples to go on with: none where it is left out.

        Raises:
            DivergedError: the run is to stop.
        """
        self._saw = False
        what = f"{self._who}, step {step}: the gradient is not finite (NaN or infinite)"
        if self._on_nan == "stop":
            raise DivergedError(f"{what}: lower the learning rate, or use clip_norm; on_nan=skip omits it")
        skips = self._on_nan == "skip"
        if not self._warned:
            self._warned = True
            if line := self._line(what, step, params, skips):
                say(f"warning: {line}")
        self.skipped += skips
        return 0 if skips else samples

    def _line(self, what: str, step: int, params: Array, skips: bool) -> str:
        """The warning; empty on a worker whose gradient only follows from another's."""
        if skips or self._leaves_out:
            return f"{what}; it is omitted; later ones of this rank are omitted without a message"
        if holds_numbers(params):
            return f"{what}; training continues with it; on_nan=skip omits such gradients, on_nan=stop ends the run"
        # One that came before has made the parameters so, and its rank has said it; or steps were too long.
        others_write = self._given is not None and params is not self._given  # hogwild: and worker 0 saw it too late
        if self._leads and (others_write or not self.exact):
            return (
                f"{self._who}, step {step}: the parameters are not finite (NaN or infinite) any more: steps were too "
                "long, or an earlier gradient, of this rank or another, was not finite; if no line names its rank and "
                "step, on_nan=stop does, since it looks at all elements in each step"
            )
        if self._leads and array_module(params).isinf(params).any():  # NaN beside it: the difference of two
            return f"{what}, since the parameters have become infinite: lower the learning rate, or use clip_norm"
        return ""


def holds_numbers(values: Array) -> bool:
    """Whether no element is NaN or infinite. Waits for a GPU."""
    return all_finite(values)
