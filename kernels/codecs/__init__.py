"""Codecs that compress updates, and keep what they leave out for later: `docs/compression.md`.

    codec = codecs.create("threshold", n, "float32", density=1e-3)
    payload = numpy.empty(codec.max_nbytes(), numpy.uint8)
    nbytes = codec.encode(update, payload)
    codec.decode_add(payload[:nbytes], out)

Importing this loads no numba; `create` does. Begin with `codec.py`, then `threshold.py`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from psgd.kernels.codecs.catalog import CODECS
from psgd.kernels.errors import UsageError

if TYPE_CHECKING:
    from psgd.kernels.codecs.codec import Codec


def create(
    name: str, n: int, dtype: Any = "float32", *, density: float = 1e-3, check: bool = False, **options: Any
) -> "Codec":
    """Makes a codec for vectors of n elements, with all its buffers.

    Args:
        name: one of `CODECS`.
        n: elements, 1 to 2^31 - 1.
        dtype: float32 or float64.
        density: the share of elements that a payload should have; `onebit` always has all.
        check: prove at every update that nothing is lost (`checked.check_each`).
        options: the codec's own, as its class says.

    Raises:
        UsageError: an unknown name or option, or an invalid value.
    """
    if name not in CODECS:
        raise UsageError(f"unknown codec {name!r}: choose one of {', '.join(CODECS)}")
    entry = CODECS[name]
    made = getattr(importlib.import_module(entry.module), entry.cls)
    known = made.__init__.__kwdefaults__ or {}
    for option in options:
        if option not in known:
            raise UsageError(f"codec {name} has no option {option!r}: it has {', '.join(known)}")
    codec: Codec = made(n, dtype, density, **options)
    if check:
        from psgd.kernels.codecs.checked import check_each

        check_each(codec)
    return codec
