"""Times one codec beside a copy of the same array, after proving that it loses nothing."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from psgd.kernels import codecs
from psgd.kernels.codecs.catalog import CODECS
from psgd.launch.bench.codec.data import Updates

SETTLING = 50
"""Updates before the first that counts, in which a codec's threshold finds its place."""


def measure(
    name: str, density: float, updates: Updates, repeats: int, options: Mapping[str, Any]
) -> dict[str, float | str | int]:
    """Encodes the updates in turn, decodes each payload, and copies and adds a dense vector beside that.

    Args:
        name: of the codec.
        density: what it is asked for.
        updates: float32 vectors of one length.
        repeats: timed ones.
        options: the codec's.

    Returns:
        Medians and means by the names that docs/compression.md explains.

    Raises:
        ContractError: what is sent and what is left is not what was put in.
    """
    n = updates[0].size
    verified = codecs.create(name, n, density=density, check=True, **options)
    payload = np.empty(verified.max_nbytes(), np.uint8)
    for update in updates:
        verified.encode(update, payload)
    codec = codecs.create(name, n, density=density, **options)
    out, other = np.zeros(n, np.float32), np.zeros(n, np.float32)
    for i in range(SETTLING):
        codec.decode_add(payload[: codec.encode(updates[i % len(updates)], payload)], out)
    seconds: dict[str, list[float]] = {key: [] for key in ("encode", "decode", "copy", "add")}
    nbytes = sent = 0
    for i in range(repeats):
        update = updates[i % len(updates)]
        length = _timed(seconds["encode"], codec.encode, update, payload)
        _timed(seconds["decode"], codec.decode_add, payload[:length], out)
        _timed(seconds["copy"], np.copyto, other, update)
        _timed(seconds["add"], np.add, out, update, out)
        nbytes, sent = nbytes + length, sent + codec.sent
    row: dict[str, float | str | int] = {"codec": name, "n": n, "dtype": "float32", "device": "cpu"}
    row.update(target_density=density, density=sent / repeats / n, nbytes=round(nbytes / repeats), repeats=repeats)
    row.update({f"{key}_seconds": float(np.median(values)) for key, values in seconds.items()})
    row["gbs"] = 4 * n / float(row["encode_seconds"]) / 1e9
    row["bits_per_entry"] = 8 * nbytes / sent - CODECS[name].value_bits if sent else math.nan
    row["entropy_bits"] = entropy(sent / repeats / n)
    return row


def entropy(density: float) -> float:
    """Bits that an entry's place needs at least, where each element is sent with this probability."""
    if not 0.0 < density < 1.0:
        return 0.0
    rest = 1.0 - density
    return (-density * math.log2(density) - rest * math.log2(rest)) / density


def _timed(seconds: list[float], call: Callable[..., Any], *arguments: Any) -> Any:
    start = time.perf_counter()
    result = call(*arguments)
    seconds.append(time.perf_counter() - start)
    return result
