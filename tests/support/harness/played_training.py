"""`psgd train --device cuda` without a GPU: arrays of NumPy stand for CuPy's, and batches are gathered on the host."""

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.fake_gpu import FakeGpu
from harness.played_cupy import forget
from psgd.data.batches import Batches


class PlayedSource:
    """A split whose batches are gathered on the host, in place of `psgd.backend.samples.Resident`."""

    def __init__(self, split: Any, statistics: Any, batch_size: int, steps: Any = None) -> None:
        self.samples, self._statistics, self._split, self._most = split.samples, statistics, split, batch_size
        self._batches: Any = None
        self._rows = np.zeros(0, np.int64)

    def _of(self, x: Any) -> Batches:
        if self._batches is None:
            self._batches = Batches(self._split, self._statistics, self._most, x.dtype)
        return self._batches  # type: ignore[no-any-return]

    def choose(self, indices: Any) -> int:
        """As of a source."""
        self._rows = indices
        return 0

    def write(self, n: int, x: Any, y: Any) -> tuple[Any, Any]:
        """As of a source."""
        return self._put(self._of(x).fetch(self._rows), x, y)

    def used(self) -> None:
        """As of a source."""

    def ordered(self, start: int, stop: int, x: Any, y: Any) -> tuple[Any, Any]:
        """As of a source."""
        return self._put(self._of(x).ordered(start, stop), x, y)

    def _put(self, found: Any, x: Any, y: Any) -> tuple[Any, Any]:
        n = len(found[0])
        x[:n], y[:n] = found[0].reshape(n, -1), found[1]
        return x[:n], y[:n]


class PlayedLosses:
    """Losses that are there at once, in place of `psgd.backend.losses.Losses`."""

    def __init__(self) -> None:
        self.steps = np.zeros(1, np.int64)
        self._newest = 0.0

    def put(self, loss: Any) -> None:
        """As of losses."""
        self._newest = float(loss[0])

    def newest(self) -> float:
        """As of losses."""
        return self._newest


def _modules() -> dict[str, Any]:
    cupy, cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
    cuda.runtime = SimpleNamespace(memGetInfo=lambda: (1 << 33, 1 << 33), getDeviceCount=lambda: 1)  # type: ignore[attr-defined]
    cupy.cuda, cupy.ndarray = cuda, type("ndarray", (), {})  # type: ignore[attr-defined]
    for name in ("asarray", "empty", "zeros", "zeros_like"):
        setattr(cupy, name, getattr(np, name))
    samples: Any = ModuleType("psgd.backend.samples")
    samples.Resident = samples.Streamed = PlayedSource
    samples.Source, samples.fits = object, lambda split: True
    pinned: Any = ModuleType("psgd.backend.pinned")
    pinned.wait = lambda: None
    losses: Any = ModuleType("psgd.backend.losses")
    losses.Losses, losses.Loss = PlayedLosses, float
    own = {each.__name__: each for each in (samples, pinned, losses)}
    return {"cupy": cupy, "cupy.cuda": cuda} | own


@contextlib.contextmanager
def played_training() -> Iterator[pytest.MonkeyPatch]:
    """Runs in here compute on cores what they would on GPUs; skips the test where CuPy is."""
    if importlib.util.find_spec("cupy") is not None:
        pytest.skip("CuPy is here: tests on GPUs say more")
    import psgd.backend as package
    from psgd.backend import places
    from psgd.parallel import pipeline

    before, played = set(sys.modules), _modules()
    with pytest.MonkeyPatch.context() as patch:
        for name, module in played.items():
            patch.setitem(sys.modules, name, module)
            if name.startswith("psgd."):
                patch.setattr(package, name.rpartition(".")[2], module, raising=False)
        patch.setattr(places, "choose", lambda comm, uses: None)
        patch.setattr(FakeGpu, "captures", False)
        patch.setattr(pipeline, "_gpu", FakeGpu)
        try:
            yield patch
        finally:
            forget(set(sys.modules) - before - set(played))
