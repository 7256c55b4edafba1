"""What `psgd bench kernels` runs: each kernel's arrays, its check against the host, and its time."""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import cupy
import numpy as np

from psgd.kernels import accumulate, elastic, exact_squares, half, update
from psgd.kernels.array import Array
from psgd.kernels.device import accumulate as device_accumulate
from psgd.kernels.layers import activation

_WIDE = 256
_CHECKED = 1 << 18


class Case(NamedTuple):
    """One kernel.

    Attributes:
        arrays: kinds of its arrays: f float32, p positive, h 16 bits, r rows of `_WIDE`, c one such row.
        call: takes them.
        nbytes: read and written for each element.
        host: the same on the host; None: `call`.
        exact: the same bits are expected.
    """

    name: str
    arrays: str
    call: Callable[..., Any]
    nbytes: float
    host: Callable[..., Any] | None = None
    exact: bool = True


def _narrow_on_host(out: Array, values: Array, kind: str) -> None:
    out += half.widen(values.view(np.float16) if kind == "float16" else values, kind)


CASES = (
    Case("sgd", "ff", lambda w, g: update.sgd(w, g, 0.1, 0.25, 1e-4), 12),
    Case("momentum", "fff", lambda w, g, v: update.momentum(w, g, v, 0.1, 0.25, 1e-4, 0.9, False), 20),
    Case("nesterov", "fff", lambda w, g, v: update.momentum(w, g, v, 0.1, 0.25, 1e-4, 0.9, True), 20),
    Case("adam", "fffp", lambda w, g, m, s: update.adam(w, g, m, s, 1e-3, 0.25, 1e-4, 0.9, 0.999, 1e-8, 7), 28),
    Case("stretch", "fff", lambda d, w, c: elastic.stretch(d, w, c, 0.3), 12),
    Case("forward", "ffff", lambda d, w, c, out: elastic.forward(d, w, c, out, 0.3), 16),
    Case("weigh", "ff", lambda out, v: accumulate.weigh(out, v, 3.7), 8),
    Case("add_weighted", "ff", lambda out, v: accumulate.add_weighted(out, v, 3.7), 12),
    *(
        Case(
            f"add_{kind}",
            "fh",
            lambda out, values, kind=kind: device_accumulate.add_narrow(out, values, kind),
            10,
            lambda out, values, kind=kind: _narrow_on_host(out, values, kind),
        )
        for kind in ("float16", "bfloat16")
    ),
    Case("sum_of_squares", "f", exact_squares.sum_of_squares, 4),
    Case("bias_relu", "rc", activation.bias_relu, 8),
    Case("bias_relu_backward", "rrc", activation.bias_relu_backward, 12, exact=False),
)


def measure(elements: int, repeats: int) -> list[dict[str, Any]]:
    """One row for a copy and for each kernel, on the current GPU. Blocks."""
    rng = np.random.default_rng(5)
    source = cupy.asarray(rng.standard_normal(elements, np.float32))
    target = cupy.empty_like(source)
    runtime = cupy.cuda.runtime
    addresses = target.data.ptr, source.data.ptr, source.nbytes, runtime.memcpyDeviceToDevice, 0
    seconds = _time(partial(runtime.memcpyAsync, *addresses), repeats)
    copy = 8 * elements / seconds
    rows = [_row("copy", 8, seconds, elements, copy, bool((source == target).all()))]
    for case in CASES:
        verified = all(_verify(case, rng, n) for n in (_CHECKED, _CHECKED - _WIDE))
        arrays = [_like(kind, source) for kind in case.arrays]
        seconds = _time(partial(case.call, *arrays), repeats)
        rows.append(_row(case.name, case.nbytes, seconds, elements, copy, verified))
    return rows


def _row(name: str, nbytes: float, seconds: float, elements: int, copy: float, verified: bool) -> dict[str, Any]:
    speed = nbytes * elements / seconds
    return {
        "kernel": name,
        "device": card(),
        "elements": elements,
        "bytes_per_element": nbytes,
        "seconds": seconds,
        "gbs": speed / 1e9,
        "of_copy": speed / copy,
        "verified": verified,
    }


def card() -> str:
    """The current GPU's name."""
    name: bytes = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())["name"]
    return name.decode()


def _like(kind: str, source: Array) -> Array:
    if kind == "h":
        return (source * 100).astype(np.float16).view(np.uint16)
    if kind == "c":
        return source[:_WIDE].copy()
    if kind == "r":
        return source[: source.size // _WIDE * _WIDE].reshape(-1, _WIDE).copy()
    return abs(source) if kind == "p" else source.copy()


def _verify(case: Case, rng: np.random.Generator, n: int) -> bool:
    """Compares with the host on fresh data: what is returned and every array, in bits or to rounding.

    The arrays of one length start one element in where n is odd in units of `_WIDE`, so that nothing is aligned.
    """
    odd = n // _WIDE % 2
    hosts = [np.asarray(_like(kind, rng.standard_normal(n, np.float32))) for kind in case.arrays]
    devices = [_shifted(array, odd and kind not in "rc") for kind, array in zip(case.arrays, hosts, strict=True)]
    expected, got = (case.host or case.call)(*hosts), case.call(*devices)
    pairs = [(host, device.get()) for host, device in zip(hosts, devices, strict=True)]
    if expected is not None:
        pairs.append((np.array(expected), np.array(got)))
    if case.exact:
        return all(host.tobytes() == device.tobytes() for host, device in pairs)
    return all(np.allclose(host, device, rtol=1e-4, atol=1e-3) for host, device in pairs)


def _shifted(array: np.ndarray, by: int) -> Array:
    if not by:
        return cupy.asarray(array)
    room = cupy.empty(array.size + by, array.dtype)
    room[by:] = cupy.asarray(array)
    return room[by:]


def _time(call: Callable[[], Any], repeats: int) -> float:
    """Median seconds of a call, by events; a warm-up first."""
    for _ in range(3):
        call()
    times: list[float] = []
    events: Sequence[Any] = cupy.cuda.Event(), cupy.cuda.Event()
    for _ in range(repeats):
        events[0].record()
        call()
        events[1].record()
        events[1].synchronize()
        times.append(cupy.cuda.get_elapsed_time(*events) / 1e3)
    return median(times)
