"""The fast path of what moves values, NumPy arrays in native dtypes, and of Barrier."""

from typing import Any

import numpy as np
from mpi4py import MPI

from psgd.collectives.arguments import descriptor
from psgd.collectives.arguments.view import KINDS
from psgd.collectives.dispatch.engine import Engine
from psgd.collectives.dispatch.tuning import Limits
from psgd.collectives.fastpath.fast_call import FastCall, Form, apart, equal_chunks, one_chunk, plain
from psgd.collectives.shm import layout

_address, _IN_PLACE = MPI.Get_address, MPI.IN_PLACE
_BYTES = (layout.GATHERS, 0, 0, -1, 1, 0)  # the words from ACTIONS: elements are bytes to the kernel


class Allgather(FastCall):
    """Allgather, out of place and in place."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        super().__init__(engine, limits, layout.INLINE_BYTES * engine.size)
        self._forms: dict[np.dtype[Any], Form] = {
            dtype: (descriptor.signature("Allgather", kind), dtype.itemsize, _BYTES) for dtype, kind in KINDS.items()
        }

    def __call__(self, sendbuf: Any, recvbuf: Any) -> bool:
        """Does the call, or returns False where it must take the general path. Blocks."""
        if type(recvbuf) is not np.ndarray or not recvbuf.flags.carray or self.failures.broken:
            return False
        form = self._forms.get(recvbuf.dtype)
        n, rest = divmod(recvbuf.size, self.size)
        if form is None or rest:
            return False
        to, total, own = _address(recvbuf), recvbuf.nbytes, n * form[1]
        source = place = to + self.rank * own
        if sendbuf is not _IN_PLACE:
            if not plain(sendbuf, recvbuf.dtype, n):
                return False
            source = _address(sendbuf)
            if source != place and not apart(source, own, to, total):
                return False
        parts, table = equal_chunks(self.size, own)
        self.run(form, n, (n,), self.method(total), source, own, to, total, to, parts)
        del table  # the kernel has read it to here
        return True


class Bcast(FastCall):
    """Bcast."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        super().__init__(engine, limits)
        self._forms: dict[tuple[np.dtype[Any], int], Form] = {}

    def __call__(self, buf: Any, root: Any) -> bool:
        """Does the call, or returns False where it must take the general path. Blocks."""
        if type(buf) is not np.ndarray or type(root) is not int or self.failures.broken:
            return False
        form = self._forms.get((buf.dtype, root)) or self._make(buf.dtype, root)
        flags = buf.flags
        if form is None or not (flags.c_contiguous and flags.aligned and (flags.writeable or root == self.rank)):
            return False
        to, nbytes = _address(buf), buf.nbytes
        source, sends = (to, nbytes) if root == self.rank else (0, 0)
        parts, table = one_chunk(self.size, root, nbytes)
        self.run(form, buf.size, buf.shape, self.method(nbytes), source, sends, to, nbytes, to, parts)
        del table  # the kernel has read it to here
        return True

    def _make(self, dtype: np.dtype[Any], root: int) -> Form | None:
        kind = KINDS.get(dtype)
        if kind is None or not 0 <= root < self.size:
            return None
        form = self._forms[dtype, root] = (descriptor.signature("Bcast", kind, None, root), dtype.itemsize, _BYTES)
        return form


class Barrier(FastCall):
    """Barrier: descriptors only."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, [])
        self._form = (descriptor.signature("Barrier"), 1, _BYTES)

    def __call__(self) -> bool:
        """Does the call, or returns False where it must take the general path. Blocks."""
        if self.failures.broken:
            return False
        self.run(self._form, 0, (), layout.AGREE, 0, 0, 0, 0, 0)
        return True
