"""What the fast path of each verb shares: the words of a call, written at once, and the kernel."""

import functools
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.collectives.algorithms.intranode import BEHIND, METHODS
from psgd.collectives.arguments import descriptor
from psgd.collectives.dispatch.engine import Engine
from psgd.collectives.dispatch.tuning import Limits
from psgd.collectives.mpi.node import address_of
from psgd.collectives.mpi.split import first_of
from psgd.collectives.shm import layout
from psgd.collectives.shm.call_kernel import run

Form = tuple[int, int, tuple[int, ...]]
"""What calls of one verb, dtype, operation and root share: signature, bytes of an element, words from ACTIONS on."""
_NOWHERE = (-1, 0)  # in no registered memory
_FLAT = (0, (1, 0, 0, 0, 0))
_pack: Any = struct.Struct(f"{layout.ARITHMETIC + 1}q").pack_into
_pack_one: Any = struct.Struct("q").pack_into
_pack_six: Any = struct.Struct("6q").pack_into
_pack_three: Any = struct.Struct("3q").pack_into
_PLAIN = 0x101  # NumPy's flags C_CONTIGUOUS and ALIGNED


class FastCall:
    """The fast path of a verb.

    Args:
        engine: all ranks are on its node.
        limits: of the verb; algorithms in shared memory only.
        inline_bytes: the largest vector that travels behind the descriptors.
    """

    def __init__(self, engine: Engine, limits: Limits, inline_bytes: int = layout.INLINE_BYTES) -> None:
        assert engine.shared is not None
        self.engine = engine
        self.failures = engine.failures
        self.shared = engine.shared
        self.node = engine.shared.node
        self.rank, self.size = engine.rank, engine.size
        self._methods: list[tuple[float, int]] = []
        for limit, name in limits:
            if name in BEHIND and limit > inline_bytes:
                self._methods += [(inline_bytes, METHODS[name]), (limit, layout.SLOTS)]
            else:
                self._methods.append((limit, METHODS[name]))
        limit, method = self._methods[0] if self._methods else (0, layout.AGREE)
        self.smallest = limit if method == layout.INLINE else -1
        self._large: tuple[object, int, int, bool] = (None, 0, 0, False)  # form, elements, offset of the own chunk

    def method(self, nbytes: int) -> int:
        """The method for a vector of so many bytes."""
        for limit, method in self._methods:
            if nbytes <= limit:
                return method
        return self._methods[-1][1]

    def run(
        self,
        form: Form,
        count: int,
        shape: tuple[int, ...],
        method: int,
        source: int,
        sends: int,
        to: int,
        receives: int,
        chunk: int,
        parts: int = 0,
    ) -> None:
        """Does a call. Blocks.

        Args:
            form: of the call.
            count: elements, for the descriptor.
            shape: for the descriptor.
            method: of `layout`.
            source: address of what this rank sends, 0 where it sends nothing.
            sends: bytes of that.
            to: address of the result.
            receives: bytes of that.
            chunk: address of this rank's own part of a reduction's result; of no meaning where all is inline and kept.
            parts: address of each rank's chunk, 0 where they are near-equal.

        Raises:
            AgreedError: ranks disagree.
            PeerLostError: a rank ended or left the call in the middle.
        """
        self._write(form, count, shape, method, source, sends, to, receives, chunk, parts)
        self.go()

    def _write(
        self,
        form: Form,
        count: int,
        shape: tuple[int, ...],
        method: int,
        source: int,
        sends: int,
        to: int,
        receives: int,
        chunk: int,
        parts: int = 0,
    ) -> None:
        """Writes the words of a call."""
        shared, node = self.shared, self.node
        shared.prepared = None
        sign, _, rest = form
        mark, extents = _FLAT if len(shape) < 2 else _of_shape(shape)
        sent = received = _NOWHERE
        if method not in layout.BEHIND:
            sent, received = node.find(source, sends), node.find(to, receives)
        places = (source, *sent, to, *received)
        _pack(shared.block, 0, sign, count, mark, 0, 0, *places, *extents, source, to, chunk, method, parts, *rest)

    def small(self, form: Form, count: int, source: int, to: int) -> None:
        """Does a call of a flat array of up to `smallest` bytes. Only those words are written that may have changed.

        Args:
            form: as of `run`, and so are the others.
            count: elements.
            source: address of what this rank sends.
            to: address of the result.
        """
        shared = self.shared
        block = shared.block
        if shared.prepared is form:
            _pack_one(block, 8 * layout.COUNT, count)
            _pack_three(block, 8 * layout.FROM, source, to, to)
        else:
            sign, _, rest = form
            mark, extents = _FLAT
            shared.prepared = None  # until all words are there
            places = (source, *_NOWHERE, to, *_NOWHERE)
            _pack(block, 0, sign, count, mark, 0, 0, *places, *extents, source, to, to, layout.INLINE, 0, *rest)
            shared.prepared = form
        self.go()

    def large(self, form: Form, count: int, nbytes: int, source: int, to: int) -> None:
        """As `small`, of any size: after a call of the same length only addresses are written.

        Args:
            form: as of `run`, and so are the others.
            count: elements.
            nbytes: of them.
            source: address of what this rank sends.
            to: address of the result.
        """
        shared, node, last = self.shared, self.node, self._large
        if shared.prepared is not last or last[0] is not form or last[1] != count:
            method = self.method(nbytes)
            own = 0 if method == layout.INLINE else first_of(count, self.size, self.rank, form[1]) * form[1]
            self._large = last = (form, count, own, method not in layout.BEHIND)
            self._write(form, count, (count,), method, source, nbytes, to, nbytes, to + own)
            shared.prepared = last
        else:
            sent = received = _NOWHERE
            if last[3] and node.ranges:
                sent, received = node.find(source, nbytes), node.find(to, nbytes)
            _pack_six(shared.block, 8 * layout.SEND, source, *sent, to, *received)
            _pack_three(shared.block, 8 * layout.FROM, source, to, to + last[2])
        self.go()

    def go(self) -> None:
        """Carries out the call whose words are written. Blocks."""
        engine, shared, reads = self.engine, self.shared, self.node.reads
        engine.took = None
        try:
            status = run(*shared.addresses, reads, shared.spins)
            if status == layout.DONE:
                engine.calls += 1
                return
            engine.run(shared.resume(status, reads))
        except BaseException as error:
            engine.failures.abandon(error)
            raise


def plain(buffer: Any, dtype: np.dtype[Any], size: int) -> bool:
    """Whether `buffer` is an array of that dtype and size that can be read from as it lies."""
    if type(buffer) is not np.ndarray or buffer.size != size:
        return False
    if buffer.dtype is not dtype and buffer.dtype != dtype:
        return False
    return bool(buffer.flags.num & _PLAIN == _PLAIN)


def apart(a: int, a_bytes: int, b: int, b_bytes: int) -> bool:
    """Whether two ranges of memory have no byte in common."""
    return a + a_bytes <= b or b + b_bytes <= a or not (a_bytes and b_bytes)


@functools.lru_cache(maxsize=64)
def equal_chunks(size: int, length: int) -> tuple[int, NDArray[np.int64]]:
    """Chunks of one length, end to end: the address of their table, as kernels read it, and what keeps it there."""
    table = np.empty((size, 2), np.int64)
    table[:, 0] = np.arange(size) * length
    table[:, 1] = length
    return address_of(table), table


@functools.lru_cache(maxsize=64)
def one_chunk(size: int, rank: int, length: int) -> tuple[int, NDArray[np.int64]]:
    """The same of a single chunk, that of `rank`; all others are empty."""
    table = np.zeros((size, 2), np.int64)
    table[rank, 1] = length
    return address_of(table), table


@functools.lru_cache(maxsize=256)
def _of_shape(shape: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """The descriptor's words for a shape of several dimensions."""
    words = np.zeros(layout.DESCRIPTOR_WORDS, np.int64)
    descriptor.fill(words, 0, 0, shape, descriptor.fingerprint(shape))
    return int(words[layout.SHAPE]), tuple(words[layout.DIMENSIONS :].tolist())
