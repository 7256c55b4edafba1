"""What becomes of a gradient that is not finite: one warning that names rank and step, left out, or the end."""

from collections.abc import Callable

from psgd.kernels.array import Array, array_module
from psgd.kernels.errors import DivergedError
from psgd.kernels.finite import finite
from psgd.kernels.notice import say
from psgd.runtime.device_vectors import on_device

ON_LARGE, ON_DEVICE = 8, 64
"""Steps from one look to the next where only a warning depends on it: of a vector that the second cache does not hold,
and of one on a GPU, which a look waits for."""
LARGE_BYTES = 1 << 20


class GradientWatch:
    """One worker's.

    Args:
        on_nan: "warn", "skip" or "stop".
        rank: of this process.
        worker: its index.
        leaves_out: gradients that are not finite are left out in any case, as a codec cannot send them.

    Attributes:
        every: steps from one look to the next.
        holds_numbers: the look: whether no element of a gradient is NaN or infinite.
        skipped: gradients left out.
    """

    def __init__(self, on_nan: str, rank: int, worker: int, leaves_out: bool) -> None:
        self.every, self.skipped = 1, 0
        self.holds_numbers: Callable[[Array], bool] = holds_numbers
        self._on_nan, self._leaves_out = on_nan, leaves_out
        self._who, self._leads = f"rank {rank} (worker {worker})", worker == 0
        self._warned = False

    @property
    def acts(self) -> bool:
        """Whether the gradient has to be looked at as a whole before any of it is sent."""
        return self._on_nan != "warn"

    def begin(self, grads: Array) -> None:
        """Chooses the look for such gradients, and how often; compiles what it needs."""
        if not on_device(grads):
            self.holds_numbers = finite  # the kernel itself, as it is called at every step
        self.holds_numbers(grads[:0])
        if not self.acts:
            self.every = ON_DEVICE if on_device(grads) else ON_LARGE if grads.nbytes > LARGE_BYTES else 1

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
        what = f"{self._who}, step {step}: the gradient is not finite (NaN or infinite)"
        if self._on_nan == "stop":
            raise DivergedError(f"{what}: lower the learning rate, or use clip_norm; on_nan=skip omits it")
        skips = self._on_nan == "skip"
        if not self._warned:
            self._warned = True
            if line := self._line(what, params, skips):
                say(f"warning: {line}")
        self.skipped += skips
        return 0 if skips else samples

    def _line(self, what: str, params: Array, skips: bool) -> str:
        """The warning; empty on a worker whose gradient only follows from another's."""
        if skips or self._leaves_out:
            return f"{what}; it is omitted; later ones of this rank are omitted without a message"
        if holds_numbers(params):
            return f"{what}; training continues with it; on_nan=skip omits such gradients, on_nan=stop ends the run"
        # One that came before has made the parameters so, and its rank has said it; or steps were too long.
        if self._leads and not array_module(params).isnan(params).any():
            return f"{what}, since the parameters have become infinite: lower the learning rate, or use clip_norm"
        return ""


def holds_numbers(values: Array) -> bool:
    """Whether no element is NaN or infinite. Waits for a GPU."""
    return bool(array_module(values).isfinite(values).all()) if on_device(values) else bool(finite(values))
