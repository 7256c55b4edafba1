"""The most that was in use of CuPy's memory pool at once: the pool itself knows only how much it has now."""

import cupy


class PoolPeak:
    """Looks at each allocation on this rank's GPU, from now to `close`."""

    def __init__(self) -> None:
        self._pool = cupy.get_default_memory_pool()
        self._most = self._pool.used_bytes()
        cupy.cuda.set_allocator(self._allocate)

    def close(self) -> int:
        """Stops looking; returns the most bytes."""
        cupy.cuda.set_allocator(self._pool.malloc)
        return int(self._most)

    def _allocate(self, nbytes: int) -> cupy.cuda.MemoryPointer:
        made = self._pool.malloc(nbytes)
        self._most = max(self._most, self._pool.used_bytes())
        return made
