"""What all codecs have in common: checked arguments, a header, and an error feedback that loses nothing."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from psgd.kernels.codecs import golomb, header, sampling, sparse
from psgd.kernels.codecs.header import PayloadHeader
from psgd.kernels.errors import CodecError, UsageError

Floats = NDArray[Any]
Bytes = NDArray[np.uint8]
MOST_ELEMENTS = 2**31 - 1


class Codec(ABC):
    """Compresses updates to payloads, and keeps what those do not say, the residual, for later ones.

    For every element, what all payloads say plus the residual is what was put in, as the dtype's additions round.
    All arrays are the codec's and made at the start; nothing is allocated later. Not for several threads at once.

    Attributes:
        n: elements.
        dtype: float32 or float64.
        residual: what is left, of shape (n,); a view.
        sent: entries of the last payload.
        max_density: the most that `density` may be set to.
    """

    name: ClassVar[str]
    max_density: float = 1.0
    _kind: ClassVar[int]

    def __init__(self, n: int, dtype: Any, density: float) -> None:
        self.n, self.dtype = n, np.dtype(dtype)
        if not 1 <= n <= MOST_ELEMENTS:
            raise UsageError(f"codec {self.name}: expected 1 to {MOST_ELEMENTS} elements, got {n}")
        if self.dtype not in (np.float32, np.float64):
            raise UsageError(f"codec {self.name}: expected float32 or float64, got {self.dtype}")
        self.density = density
        self.residual: Floats = np.zeros(n, self.dtype)
        self.sent = 0

    @property
    def density(self) -> float:
        """The share of the elements that a payload should have; may be set between updates."""
        return self._density

    @density.setter
    def density(self, density: float) -> None:
        if not 0.0 < density <= self.max_density:
            most = self.max_density
            raise UsageError(f"codec {self.name}: expected a density above 0 and at most {most}, got {density}")
        self._density = density

    @abstractmethod
    def max_nbytes(self) -> int:
        """The bytes that a buffer for payloads needs; does not change. Payloads are shorter."""

    def encode(self, update: Floats, payload: Bytes) -> int:
        """Adds an update to the residual, and takes from it what the payload says.

        Args:
            update: shape (n,), contiguous, of the codec's dtype; not changed.
            payload: uint8, contiguous, `max_nbytes()` at least; its first bytes are written.

        Returns:
            The payload's length in bytes, or 0 where a value is NaN, infinite or at least 2^100: then neither the
            residual nor any other state has changed, and the update is to be dropped, by all ranks.
        """
        self._expect("update", update, self.dtype, self.n, self.n)
        self._expect("payload", payload, np.dtype(np.uint8), self.max_nbytes(), None)
        looks = sparse.look(update)
        if looks < 0:
            return 0
        nbytes, stated = self._encode(update, payload, looks > 0)
        self.sent = stated.count
        header.write(payload, nbytes, stated)
        return nbytes

    def decode_add(self, payload: Bytes, out: Floats) -> int:
        """Adds what a payload says to `out`. Needs and changes nothing of this codec's state: anyone's payload will do.

        Args:
            payload: uint8, contiguous, as long as `encode` returned.
            out: shape (n,), contiguous, of the codec's dtype.

        Returns:
            The number of entries.

        Raises:
            CodecError: it is damaged, or not for these n elements; `out` is unchanged.
        """
        self._expect("payload", payload, np.dtype(np.uint8), 0, None)
        self._expect("out", out, self.dtype, self.n, self.n)
        stated = header.read(payload, self._kind, self.n)
        if not (self._can(stated) and self._add(payload, out, stated)):
            raise CodecError(f"a payload of {payload.size} bytes is damaged: no encoder writes this")
        return stated.count

    def warm_up(self) -> None:
        """Compiles what this codec needs, on one of a few elements; its own state stays as it is."""
        small = type(self)(64, self.dtype, 0.5)
        update, payload = np.linspace(-1, 1, 64, dtype=self.dtype), np.empty(small.max_nbytes(), np.uint8)
        small.decode_add(payload[: small.encode(update, payload)], update)

    def send_whole(self, update: Floats) -> None:
        """Adds to an update that is sent whole, without `encode`, the whole residual, which is then zero.

        Args:
            update: finite, shape (n,), of the codec's dtype; changed in place.
        """
        np.add(update, self.residual, out=update)
        self.residual.fill(0)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The whole state by name, as views: to be saved, and written back in place."""
        return {"residual": self.residual}

    def before_sending(self, update: Floats) -> Floats:
        """The residual as the next `encode` would have it if it sent nothing; for checks, a new array."""
        return np.asarray(self.residual + update)

    def at_bound(self) -> NDArray[np.bool_]:
        """Where the last update's residual may have been clipped; for checks, a new array."""
        return np.zeros(self.n, np.bool_)

    def _expect(self, what: str, array: Any, dtype: np.dtype[Any], least: int, most: int | None) -> None:
        fits = isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype == dtype
        if not fits or not array.flags.c_contiguous or array.size < least or (most is not None and array.size > most):
            length = f"{least}" if most is not None else f"at least {least}"
            got = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
            raise UsageError(f"codec {self.name}, {what}: expected a contiguous {dtype} array of {length}, got {got}")

    @abstractmethod
    def _encode(self, update: Floats, payload: Bytes, other_than_zero: bool) -> tuple[int, PayloadHeader]:
        """Writes all of a payload but its header; returns its length and its header."""

    @abstractmethod
    def _can(self, stated: PayloadHeader) -> bool:
        """Whether this codec writes such headers."""

    @abstractmethod
    def _add(self, payload: Bytes, out: Floats, stated: PayloadHeader) -> bool:
        """Adds, or returns False and adds nothing."""


class SparseCodec(Codec):
    """A codec that sends some elements, each with a number of bits of its own."""

    _widths: ClassVar[tuple[int, ...]]

    def __init__(self, n: int, dtype: Any, density: float) -> None:
        super().__init__(n, dtype, density)
        self._flags = np.zeros(sparse.CHUNK, np.bool_)
        self._classes = np.empty(sampling.CLASSES, np.int32)
        self._places, self._values = np.empty(sparse.AHEAD, np.int64), np.empty(sparse.AHEAD, self.dtype)

    def _can(self, stated: PayloadHeader) -> bool:
        known = golomb.MIN_LOG_BLOCK <= stated.log_block <= golomb.MAX_LOG_BLOCK
        return known and stated.width in self._widths

    def _add(self, payload: Bytes, out: Floats, stated: PayloadHeader) -> bool:
        rest = (stated.count, stated.tau, stated.width, stated.log_block, self._places, self._values)
        return bool(sparse.add(payload, out, *rest, True)) and bool(sparse.add(payload, out, *rest, False))
