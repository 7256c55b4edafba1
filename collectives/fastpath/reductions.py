"""The fast path of what combines values: NumPy arrays in native dtypes, by MPI's four operations or the mean."""

from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.arguments import descriptor, operations
from psgd.collectives.arguments.view import KINDS
from psgd.collectives.dispatch.engine import Engine
from psgd.collectives.dispatch.tuning import Limits
from psgd.collectives.fastpath.fast_call import FastCall, Form, apart, equal_chunks, plain
from psgd.collectives.mpi.split import first_of
from psgd.collectives.shm import layout
from psgd.kernels.reduce import arithmetic

_address, _IN_PLACE = MPI.Get_address, MPI.IN_PLACE
_NAMED = (MPI.SUM, MPI.PROD, MPI.MIN, MPI.MAX, operations.MEAN)
_OPERATIONS = {id(name): operation for name, operation in zip(_NAMED, operations.ALL, strict=True)}
"""By the very objects that callers pass: others that mean the same take the general path."""


class _Reduction(FastCall):
    """A verb that combines.

    Args:
        engine, limits: as of a FastCall.
        verb: its name.
        actions: of `layout`.
    """

    def __init__(self, engine: Engine, limits: Limits, verb: str, actions: int) -> None:
        super().__init__(engine, limits)
        self._verb = verb
        self._actions = actions
        self._forms: dict[tuple[np.dtype[Any], int], Form] = {}
        self._last: tuple[Any, Any, Form | None] = (None, None, None)

    def form(self, recvbuf: Any, op: Any) -> Form | None:
        """The form of a call, or None where it takes the general path. Compiles a dtype's arithmetic the first time."""
        if type(recvbuf) is not np.ndarray or not recvbuf.flags.carray or self.failures.broken:
            return None
        dtype = recvbuf.dtype
        of_dtype, of_op, form = self._last
        if of_dtype is dtype and of_op is op:
            return form
        form = self._forms.get((dtype, id(op))) or self._make(dtype, op)
        self._last = (dtype, op, form)
        return form

    def _make(self, dtype: np.dtype[Any], op: Any) -> Form | None:
        kind, operation = KINDS.get(dtype), _OPERATIONS.get(id(op))
        if kind is None or kind == "float16" or operation is None or not operation.accepts(kind):
            return None
        sign = descriptor.signature(self._verb, kind, operation)
        divisor = self.size if operation.mean else 0
        rest = (self._actions, operation.code, divisor, -1, dtype.itemsize, arithmetic(dtype))
        form = self._forms[dtype, id(op)] = (sign, dtype.itemsize, rest)
        return form


class Allreduce(_Reduction):
    """Allreduce, out of place and in place."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        super().__init__(engine, limits, "Allreduce", layout.REDUCES | layout.GATHERS)

    def __call__(self, sendbuf: Any, recvbuf: Any, op: Any) -> bool:
        """Does the call, or returns False where it must take the general path. Blocks."""
        form = self.form(recvbuf, op)
        if form is None:
            return False
        n, nbytes = recvbuf.size, recvbuf.nbytes
        source = to = _address(recvbuf)
        if sendbuf is not _IN_PLACE:
            if not plain(sendbuf, recvbuf.dtype, n):
                return False
            source = _address(sendbuf)
            if source != to and not apart(source, nbytes, to, nbytes):
                return False
        if recvbuf.ndim == 1:
            if nbytes <= self.smallest:
                self.small(form, n, source, to)
            else:
                self.large(form, n, nbytes, source, to)
            return True
        method, chunk = self.method(nbytes), to
        if method != layout.INLINE:
            chunk += first_of(n, self.size, self.rank, form[1]) * form[1]
        self.run(form, n, recvbuf.shape, method, source, nbytes, to, nbytes, chunk)
        return True


class ReduceScatterBlock(_Reduction):
    """Reduce_scatter_block, out of place and in place."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        super().__init__(engine, limits, "Reduce_scatter_block", layout.REDUCES)

    def __call__(self, sendbuf: Any, recvbuf: Any, op: Any) -> bool:
        """Does the call, or returns False where it must take the general path. Blocks."""
        form = self.form(recvbuf, op)
        if form is None:
            return False
        if sendbuf is _IN_PLACE:
            return self._in_place(form, recvbuf)
        n = recvbuf.size
        if not plain(sendbuf, recvbuf.dtype, n * self.size):
            return False
        source, to = _address(sendbuf), _address(recvbuf)
        if not apart(source, sendbuf.nbytes, to, recvbuf.nbytes):
            return False
        self._scatter(form, n, sendbuf.shape, source, to)
        return True

    def _in_place(self, form: Form, buffer: NDArray[Any]) -> bool:
        n, rest = divmod(buffer.size, self.size)
        if rest:
            return False
        to = _address(buffer)
        if (
            self.method(buffer.nbytes) == layout.INLINE
        ):  # the values are behind the descriptor before any result is written
            self._scatter(form, n, (n,), to, to)
        else:
            result = np.empty(n, buffer.dtype)
            self._scatter(form, n, (n,), to, _address(result))
            buffer.reshape(-1)[:n] = result
        return True

    def _scatter(self, form: Form, n: int, shape: tuple[int, ...], source: int, to: int) -> None:
        """Does the call; each rank gets `n` elements."""
        total, own = n * self.size * form[1], n * form[1]
        parts, table = equal_chunks(self.size, n)
        self.run(form, n * self.size, shape, self.method(total), source, total, to, own, to, parts)
        del table  # the kernel has read it to here
