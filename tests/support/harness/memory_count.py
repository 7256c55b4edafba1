"""What a process has: bytes of NumPy's arrays, of the memory that it shares, and of resident pages."""

import contextlib
import ctypes
import gc
import tracemalloc
from pathlib import Path

import numpy as np

from psgd.collectives.mpi import shared_memory


class Counter:
    """Bytes of NumPy's arrays, and of the memory that this process shares, made while it is open."""

    def __enter__(self):
        self._real, self.shared = shared_memory.SharedArray.__init__, 0
        counter, real = self, self._real

        def init(self, size, dtype):
            real(self, size, dtype)
            counter.shared += size * np.dtype(dtype).itemsize

        shared_memory.SharedArray.__init__ = init
        tracemalloc.start()
        return self

    def read(self):
        numpy_only = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
        traces = tracemalloc.take_snapshot().filter_traces([numpy_only]).traces
        return sum(trace.size for trace in traces) + self.shared

    def __exit__(self, *_):
        tracemalloc.stop()
        shared_memory.SharedArray.__init__ = self._real


@contextlib.contextmanager
def freed_memory_leaves():
    """Here what is freed goes back to the system at once, so that resident pages are of what there is."""
    libc = ctypes.CDLL(None)

    def thresholds(nbytes):
        if hasattr(libc, "mallopt"):
            libc.mallopt(-3, nbytes)  # M_MMAP_THRESHOLD
            libc.mallopt(-1, nbytes)  # M_TRIM_THRESHOLD

    thresholds(1 << 16)
    try:
        yield
    finally:
        thresholds(1 << 17)


def resident():
    """Bytes of this process's pages but for files'; of those that others have too its share."""
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    lines = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines())
    return sum(int(line[1]) << 10 for line in lines if line[0] in ("Pss_Anon:", "Pss_Shmem:"))
