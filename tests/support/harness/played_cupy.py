"""A CuPy without a GPU: notes on which of several GPUs something is done. As in CUDA, a thread begins on the first."""

import contextlib
import importlib.util
import sys
import threading
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

UUID_BYTES = 16
USERS = (
    *("cupy", "psgd.kernels.device", "psgd.collectives.device", "psgd.collectives.peers", "psgd.parallel.stages.gpu"),
    *("psgd.backend.cuda", "psgd.backend.losses", "psgd.backend.pinned", "psgd.backend.samples"),
    *("psgd.backend.rules_on_gpu", "psgd.backend.offload.bus", "psgd.training.torch_cuda_backend"),
    *("psgd.training.pieces.cuda_", "psgd.training.sharded.sharded_cuda_"),
)
"""Modules that are bound to it, which nobody else may find."""


class CUDARuntimeError(RuntimeError):
    """As CuPy's."""

    def __init__(self, status):
        super().__init__(f"status {status}")
        self.status = status


class Pinned(bytearray):
    """Page-locked memory."""

    ptr = 4096


class PlayedCuda:
    """What was done, and what is to happen.

    Attributes:
        done: by whatever thread: what, and the GPU that was current there.
        status: of the next looks at an event; the last one stays.
    """

    def __init__(self):
        self.done, self.status = [], [0]
        self._threads = threading.local()

    @property
    def current(self):
        return getattr(self._threads, "current", 0)

    @contextlib.contextmanager
    def device(self, number):
        before, self._threads.current = self.current, number
        try:
            yield
        finally:
            self._threads.current = before

    def note(self, what, result=None):
        """Makes a function that is noted."""

        def call(*args, **kwargs):
            self.done.append((what, self.current))
            return result

        return call

    def query(self, event):
        self.done.append(("query", self.current))
        return self.status.pop(0) if len(self.status) > 1 else self.status[0]

    def array(self, size, dtype):
        """Memory on the current GPU."""
        self.done.append(("array", self.current))
        array = SimpleNamespace(nbytes=size * np.dtype(dtype).itemsize, data=SimpleNamespace(ptr=8192))
        array.get, array.set = self.note("get", np.zeros(1, dtype)), self.note("set")
        return _Cut(array)

    def modules(self):
        """What is imported in CuPy's place."""
        runtime = SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            eventQuery=self.query,
            getDevice=lambda: self.current,
            getDeviceProperties=lambda device: {"uuid": bytes([device]) * UUID_BYTES},
            ipcGetMemHandle=self.note("handle", bytes(64)),
            ipcOpenMemHandle=self.note("map", 1 << 20),
            malloc=self.note("malloc", 1 << 16),
            memcpyDeviceToDevice=3,
            **{name: self.note(name) for name in ("deviceSynchronize", "free", "ipcCloseMemHandle", "memset")},
        )
        cuda = ModuleType("cupy.cuda")
        cuda.Device, cuda.runtime, cuda.driver = self.device, runtime, SimpleNamespace()
        cuda.alloc_pinned_memory = lambda nbytes: self.note("pin", Pinned(nbytes))()
        module = ModuleType("cupy")
        module.cuda, module.zeros, module.empty = cuda, self.array, self.array
        return {"cupy": module, "cupy.cuda": cuda}


class _Cut:
    """An array of which any part is itself."""

    def __init__(self, array):
        self._array = array

    def __getattr__(self, name):
        return getattr(self._array, name)

    def __getitem__(self, part):
        return self


@contextlib.contextmanager
def played_cupy():
    """Has psgd's modules, as far as they are imported inside, take this for CuPy; skips the test where CuPy is."""
    if importlib.util.find_spec("cupy") is not None:
        pytest.skip("CuPy is here: tests on GPUs say more")
    cuda, before = PlayedCuda(), set(sys.modules)
    sys.modules.update(cuda.modules())
    try:
        yield cuda
    finally:
        forget(set(sys.modules) - before)


def forget(names):
    """Has the next one who imports these modules make them anew, if they are bound to what is played."""
    for name in [name for name in names if name.startswith(USERS)]:
        module = sys.modules.pop(name)
        package, _, last = name.rpartition(".")
        if getattr(sys.modules.get(package), last, None) is module:
            delattr(sys.modules[package], last)
