"""The options of compressed updates. Loads no codec."""

from psgd.kernels.codecs.catalog import CODECS
from psgd.runtime.option import Option, from_zero, one_of, whole


def compress(defaults: str) -> Option:
    """Which codec; `defaults` says in words what each strategy does by itself."""
    return one_of(("none", *CODECS), None, "Codec that compresses updates.", shown=defaults)


DENSITY = Option(
    float,
    1e-3,
    "Share of an update that is sent.",
    lambda share: 0 < share <= 1,
    "a number above 0, at most 1",
)
WARMUP = from_zero(0.0, "Initial epochs, in which updates are sent whole.")
SYNC = whole(0, 0, "Steps between two sends of the whole residual; 0 means never.")
