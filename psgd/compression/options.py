"""Options of compressed updates. Loads no codec before one is made."""

from typing import TYPE_CHECKING, Any, NamedTuple

from psgd.collectives.mpi.env import switch
from psgd.compression import catalog
from psgd.kernels import codecs
from psgd.kernels.codecs.catalog import CODECS
from psgd.kernels.errors import UsageError
from psgd.optim.rules import Rule

if TYPE_CHECKING:
    from psgd.kernels.codecs.codec import Codec


class Compression(NamedTuple):
    """How updates are compressed.

    Attributes:
        name: of the codec.
        density: the share of elements that are sent at a step.
        warmup: samples of all workers before which updates are sent whole.
        sync_every: steps from one to the next at which the whole residual is sent; 0 is never.
        factor, weight_decay: of the rule that comes before the codec.
    """

    name: str
    density: float
    warmup: float
    sync_every: int
    factor: float
    weight_decay: float

    @property
    def codec_has_momentum(self) -> bool:
        """Whether the codec applies momentum itself."""
        return self.name in CODECS and CODECS[self.name].has_momentum

    def sends_whole(self, samples: float, step: int) -> bool:
        """Whether a step is sent whole, after so many samples; `step` counts from 1."""
        return samples < self.warmup or (self.sync_every > 0 and step % self.sync_every == 0)

    def codec(self, n: int, dtype: Any, workers: int | None = None) -> "Codec":
        """A codec for n elements, its invariant checked at each call with PSGD_CHECK=1.

        Args:
            n: elements.
            dtype: float32 or float64.
            workers: how many workers' updates it is to carry, where it is for a server's answers; None for a worker's.
        """
        density = min(1.0, (workers or 1) * self.density)
        options = {"momentum": self.factor if workers is None else 0.0} if self.codec_has_momentum else {}
        return codecs.create(self.name, n, dtype, density=density, check=bool(switch("PSGD_CHECK")), **options)


def create(compress: str | None, density: float, warmup: float, sync_every: int, rule: Rule) -> Compression | None:
    """Checks the options.

    Returns:
        None where nothing is to be compressed.

    Raises:
        UsageError: an invalid option, or a rule that cannot come before a codec.
    """
    if compress is not None:
        catalog.compress("").check("compress", compress)
    share = catalog.DENSITY.check("density", density)
    first, every = catalog.WARMUP.check("compress_warmup", warmup), catalog.SYNC.check("compress_sync", sync_every)
    if compress in (None, "none"):
        return None
    if rule.factor is None:
        raise UsageError(
            f"rule: with compress={compress} expected sgd or momentum, which can come before encoding, got {rule.name}"
        )
    return Compression(str(compress), share, first, every, rule.factor, rule.weight_decay)
