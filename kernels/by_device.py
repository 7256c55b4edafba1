"""One decorator for functions of one meaning on two devices: the host's here, its twin in `psgd.kernels.device`."""

import functools
import importlib
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

F = TypeVar("F", bound=Callable[..., object])


def by_device(host: F) -> F:
    """Sends calls whose first argument is a device array to `psgd.kernels.device`, others to `host`.

    Args:
        host: a function in `psgd.kernels.x`, called with positional arguments alone; `psgd.kernels.device.x` has one of
            the same name and arguments, and is imported when it is first needed.
    """

    @functools.cache
    def device() -> Any:
        module = importlib.import_module(host.__module__.replace("psgd.kernels.", "psgd.kernels.device."))
        return getattr(module, host.__name__)

    @functools.wraps(host)
    def call(first: Any, *rest: Any) -> Any:
        return host(first, *rest) if isinstance(first, np.ndarray) else device()(first, *rest)

    return call  # type: ignore[return-value]
