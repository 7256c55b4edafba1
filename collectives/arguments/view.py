"""A caller's buffer as collectives see it: one flat array, the same memory where that is possible, else a copy."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psgd.kernels.errors import UsageError

NAMES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
"""The native NumPy dtypes that collectives take, by name."""
KINDS: dict[np.dtype[Any], str] = {np.dtype(name): name for name in NAMES}
"""The same dtypes, with their names."""
BFLOAT16 = "bfloat16"
"""The kind without a dtype in NumPy; its bits are uint16."""


class View:
    """A buffer of the caller's, ready for a collective.

    Attributes:
        flat: 1-D, C-contiguous, aligned, of native byte order, in logical order of the elements. The caller's memory,
            or a copy of it; read-only where the caller's memory is.
        kind: the name of the elements' type: one of NumPy's, or "bfloat16", for which `flat` holds the bits as uint16.
        logical: the caller's array, in its own shape and order.
        device: the number of the GPU whose memory it is, or None.
        copied: `flat` is a copy of the values that the caller's memory had when the view was made.
    """

    __slots__ = ("copied", "flat", "kind", "logical")
    device: int | None = None
    copied: bool

    def __init__(self, flat: NDArray[Any], kind: str, logical: NDArray[Any], copied: bool = False) -> None:
        self.flat = flat
        self.kind = kind
        self.logical = logical
        self.copied = copied

    @property
    def size(self) -> int:
        """Elements."""
        return self.flat.size

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape, `()` for a 0-d array."""
        return self.logical.shape

    def write_back(self) -> None:
        """Puts the result into the caller's array, by logical index. Does nothing where `flat` is its memory."""

    def restrict(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Has only these ranges (start, stop) of `flat` written back, so that what lies between is never touched."""

    def part(self, start: int, count: int) -> "View":
        """The view of `count` elements from `start`, inside the whole one; nothing else is written back."""
        self.restrict([(start, start + count)])
        return self._with(self.flat[start : start + count], self.kind)

    def reinterpret(self, dtype: np.dtype[Any], kind: str, name: str, writable: bool) -> "View":
        """The same bytes as elements of another type.

        Args:
            dtype: one of `KINDS`, uint16 for bfloat16.
            kind: its kind.
            name: the argument's, for the error.
            writable: the collective writes into it.

        Raises:
            UsageError: the bytes are no whole number of elements.
        """
        if self.flat.nbytes % dtype.itemsize:
            raise UsageError(
                f"{name}: expected a whole number of {kind} elements, got {self.flat.nbytes} bytes ({self.flat.size} "
                f"of {self.kind}); pass a buffer whose size is a multiple of {dtype.itemsize} bytes"
            )
        flat = np.ndarray((self.flat.nbytes // dtype.itemsize,), dtype, self.flat)
        if flat.flags.aligned:
            return self._with(flat, kind)
        aligned = flat.copy()  # compiled loops need aligned elements
        return CopiedView(aligned, kind, flat) if writable else View(aligned, kind, flat, copied=True)

    def _with(self, flat: NDArray[Any], kind: str) -> "View":
        return View(flat, kind, flat, self.copied)


class CopiedView(View):
    """A copy whose result goes back into the caller's array, of the same dtype but for the order of its bytes."""

    __slots__ = ("_copy", "_parts", "_target")

    def __init__(self, flat: NDArray[Any], kind: str, target: NDArray[Any]) -> None:
        super().__init__(flat, kind, target, copied=True)
        self._target = target
        self._copy = flat
        self._parts: list[tuple[int, int]] | None = None  # in elements of the copy; None: all

    def write_back(self) -> None:
        if self._parts is None:
            self._target[...] = self._copy.reshape(self._target.shape)
            return
        for start, stop in self._parts:
            self._target.flat[start:stop] = self._copy[start:stop]

    def restrict(self, ranges: Iterable[tuple[int, int]]) -> None:
        size, unit = self.flat.itemsize, self._copy.itemsize
        self._parts = [(start * size // unit, -(-stop * size // unit)) for start, stop in ranges if start < stop]

    def _with(self, flat: NDArray[Any], kind: str) -> View:
        other = CopiedView(self._copy, kind, self._target)
        other.flat, other.logical, other._parts = flat, flat, self._parts
        return other
