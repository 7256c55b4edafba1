"""The short way for the commonest call: an all-reduce of plain arrays among the ranks of one node.

It means what the long way means (`verbs`, `programs`, `shared`), without a Call and a generator: those cost more than a
small all-reduce.
"""

import struct
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives import contract
from psgd.collectives.algorithms.shared import METHODS
from psgd.collectives.arrays import KINDS
from psgd.collectives.compiled import layout
from psgd.collectives.compiled.collective import run
from psgd.collectives.engine import Engine
from psgd.collectives.operations import MAX_, SUM_, Operation
from psgd.collectives.split import first_of
from psgd.collectives.tuning import Limits
from psgd.kernels.reduce import arithmetic

_address = MPI.Get_address
_IN_PLACE, _SUM, _MAX = MPI.IN_PLACE, MPI.SUM, MPI.MAX
_BOTH = layout.REDUCES | layout.GATHERS
_Kind = tuple[int, int, int, np.dtype[Any]]


def _packer(words: int) -> Any:
    """Writes so many 64-bit words into a buffer at an offset."""
    return struct.Struct(f"{words}q").pack_into


_pack_three, _pack_four, _pack_six, _pack_seven = (_packer(n) for n in (3, 4, 6, 7))


class Quick:
    """All-reduces of NumPy arrays in native dtypes, by SUM or MAX.

    Args:
        engine: local.
        limits: of Allreduce; algorithms in shared memory only.
    """

    def __init__(self, engine: Engine, limits: Limits) -> None:
        assert engine.node is not None
        self._engine = engine
        self._node = engine.node
        self._methods = [
            (min(limit, layout.INLINE_BYTES) if name == "inline" else limit, METHODS[name]) for limit, name in limits
        ]
        self._sums, self._maxima = _kinds(SUM_), _kinds(MAX_)
        self._tells: dict[tuple[int, ...], int] = {}

    def allreduce(self, sendbuf: Any, recvbuf: Any, op: Any) -> bool:
        """Does the call, or returns False where it has to go the long way. Blocks."""
        if type(recvbuf) is not np.ndarray or not (op is _SUM or op is _MAX) or self._engine.broken:
            return False
        kind = (self._sums if op is _SUM else self._maxima).get(recvbuf.dtype)
        if kind is None or not recvbuf.flags.carray:
            return False
        to = source = _address(recvbuf)
        if sendbuf is not _IN_PLACE:
            if type(sendbuf) is not np.ndarray or sendbuf.dtype != recvbuf.dtype or sendbuf.size != recvbuf.size:
                return False
            flags = sendbuf.flags
            if not (flags.c_contiguous and flags.aligned):
                return False
            source = _address(sendbuf)
            if source != to and abs(source - to) < recvbuf.nbytes:
                return False
        self._run(kind, source, to, recvbuf)
        return True

    def _run(self, kind: _Kind, source: int, to: int, recv: NDArray[Any]) -> None:
        engine = self._engine
        self._prepare(kind, source, to, recv)
        try:
            status = run(*engine.addresses, self._node.reads, engine.spins)
            if status == layout.DONE:
                engine.calls += 1
                return
            engine.prepared = None
            engine.run(engine.resume(status, lambda: run(*engine.addresses, self._node.reads, engine.spins)))
        except BaseException as error:
            engine.abandon(error)
            raise

    def _prepare(self, kind: _Kind, source: int, to: int, recv: NDArray[Any]) -> None:
        """Writes the words of the call; those that are as in the call before stay."""
        engine, node = self._engine, self._node
        sign, code, item, dtype = kind
        n, nbytes, shape = recv.size, recv.nbytes, recv.shape
        tells = 0
        if len(shape) > 1:
            tells = self._tells.get(shape) or self._tells.setdefault(shape, contract.fingerprint(shape))
        if engine.prepared is not kind or len(shape) > 1:
            contract.fill(engine.line, sign, n, shape, tells)
            _pack_seven(engine.block, 8 * layout.PARTS, 0, _BOTH, code, 0, -1, item, arithmetic(dtype))
            engine.prepared = kind if len(shape) == 1 else None
        method = layout.DIRECT
        for limit, each in self._methods:
            if nbytes <= limit:
                method = each
                break
        if method == layout.INLINE:
            _pack_four(engine.block, 8 * layout.FROM, source, to, to, method)
        else:
            chunk = to + first_of(n, engine.size, engine.rank, item) * item
            _pack_four(engine.block, 8 * layout.FROM, source, to, chunk, method)
            _pack_six(engine.block, 8 * layout.SEND, source, *node.find(source, nbytes), to, *node.find(to, nbytes))
        _pack_three(engine.block, 0, sign, n, tells)
        engine.took = None


def _kinds(op: Operation) -> dict[Any, _Kind]:
    """For each dtype an all-reduce's signature, the operation's code, the element's size, and the dtype."""
    kinds = [(dtype, kind) for dtype, kind in KINDS.items() if kind != "float16" and op.accepts(kind)]
    return {dtype: (contract.signature("Allreduce", kind, op), op.code, dtype.itemsize, dtype) for dtype, kind in kinds}
