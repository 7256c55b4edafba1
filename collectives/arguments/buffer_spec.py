"""mpi4py's message specifications: a buffer alone, or a list with counts, displacements and a datatype.

A spec is `buffer`, `[buffer, count]`, `[buffer, datatype]`, `[buffer, count, datatype]` or
`[buffer, count, displacement, datatype]`; `(count, displacement)` may stand where a count does. Each means what it
means to mpi4py 4.1, with two differences: non-contiguous and Fortran-ordered arrays are taken in logical order, and
what does not fit into the buffer is an error.
"""

import itertools
import operator
from typing import Any

import numpy as np
from mpi4py import MPI

from psgd.collectives.arguments.host_arrays import view
from psgd.collectives.arguments.view import BFLOAT16, KINDS, View
from psgd.kernels.errors import UsageError

_EXTRA_CODES = {  # element types for which an MPI need not have a datatype
    "e": (np.dtype(np.float16), "float16"),
    "f2": (np.dtype(np.float16), "float16"),
    BFLOAT16: (np.dtype(np.uint16), BFLOAT16),
}


def single(spec: Any, name: str, writable: bool) -> View:
    """One run of elements: the buffer, or `count` elements of it from `displacement` (in elements).

    Args:
        spec: as a caller passes it.
        name: the argument's name, for errors.
        writable: the collective writes into it.

    Raises:
        UsageError: it is no such spec, or does not fit into its buffer.
    """
    if type(spec) is np.ndarray:
        return view(spec, name, writable)
    buffer, count, displacement, datatype = _unpack(spec, name, lists=True)
    whole = _typed(buffer, datatype, name, writable)
    if count is None and displacement is None:
        return whole
    start = _integer(displacement or 0, "displacement", name)
    n = whole.size - start if count is None else _integer(count, "count", name)
    return _part(whole, start, n, name)


def block(spec: Any, name: str, size: int, writable: bool) -> tuple[View, int]:
    """`size` equal blocks, one after the other: what Allgather receives and Reduce_scatter_block sends.

    A count in the spec is that of one block; without one the buffer is cut evenly.

    Args:
        spec: as a caller passes it.
        name: the argument's name, for errors.
        size: number of blocks, the ranks of the communicator.
        writable: the collective writes into it.

    Returns:
        The view of all blocks, and the elements of one.

    Raises:
        UsageError: it is no such spec, does not fit into its buffer, or cannot be cut evenly.
    """
    buffer, count, displacement, datatype = _unpack(spec, name, lists=True)
    whole = _typed(buffer, datatype, name, writable)
    start = _integer(displacement or 0, "displacement", name)
    if count is not None:
        n = _integer(count, "count", name)
        return _part(whole, start, n * size, name), n
    n, rest = divmod(whole.size - start, size)
    if rest:
        raise UsageError(
            f"{name}: expected a multiple of {size} elements, one block for each rank, got {whole.size - start} "
            f"of {whole.kind}; pass a buffer of such a size, or [buffer, elements of one block]"
        )
    return (_part(whole, start, n * size, name) if start else whole), n


def vector(spec: Any, name: str, size: int, writable: bool) -> tuple[View, list[int], list[int]]:
    """`size` blocks of any lengths at any places: what Allgatherv receives.

    A spec is as for `single`, but for counts and displacements: a list or array with one for each rank, or one number
    (counts all equal; blocks that many elements apart). A tuple is always the pair (counts, displacements). Without
    counts the buffer is cut into near-equal blocks, longer ones first; without displacements they lie end to end.

    Args:
        spec: as a caller passes it.
        name: the argument's name, for errors.
        size: number of blocks, the ranks of the communicator.
        writable: the collective writes into it.

    Returns:
        The view of the whole buffer, counts and displacements in elements. Only the blocks are written back.

    Raises:
        UsageError: it is no such spec, a block does not fit into the buffer, or, with `writable`, blocks overlap.
    """
    buffer, count, displacement, datatype = _unpack(spec, name, lists=False)
    whole = _typed(buffer, datatype, name, writable)
    if count is None:
        base, longer = divmod(whole.size, size)
        lengths = [base + (i < longer) for i in range(size)]
    else:
        lengths = _integers(count, "counts", name, size) or [_integer(count, "count", name)] * size
    if displacement is None:
        starts = [sum(lengths[:i]) for i in range(size)]
    else:
        starts = _integers(displacement, "displacements", name, size)
        starts = starts or [i * _integer(displacement, "displacement", name) for i in range(size)]
    ranges = sorted((start, start + n) for start, n in zip(starts, lengths, strict=True) if n)
    last = max((stop for _, stop in ranges), default=0)
    if last > whole.size:
        raise UsageError(
            f"{name}: expected counts and displacements inside the buffer of {whole.size} elements of {whole.kind}"
            f", got counts {lengths} and displacements {starts}, which end at {last}; pass a larger buffer"
        )
    if writable and any(stop > start for (_, stop), (start, _) in itertools.pairwise(ranges)):
        raise UsageError(
            f"{name}: expected blocks that do not overlap, got counts {lengths} and displacements {starts}; move them "
            "apart: MPI does not define which block is written last"
        )
    whole.restrict(ranges)
    return whole, lengths, starts


def counts(recvcounts: Any, name: str, size: int) -> list[int]:
    """The elements for each rank, as Reduce_scatter takes them: a sequence or an array of `size` integers.

    Raises:
        UsageError: it is none, or of another length.
    """
    result = _integers(recvcounts, "counts", name, size)
    if not result:
        raise UsageError(
            f"{name}: expected {size} counts, one for each rank, got {recvcounts!r}; pass a list of integers"
        )
    return result


def _unpack(spec: Any, name: str, lists: bool) -> tuple[Any, Any, Any, Any]:
    """Buffer, count, displacement and datatype, None where missing. With `lists`, a list may be the pair too."""
    if not isinstance(spec, (list, tuple)):
        return spec, None, None, None
    if not 2 <= len(spec) <= 4 or isinstance(spec[0], (int, float, complex, np.generic)):
        got = f"{type(spec).__name__} of {len(spec)}" + (f", the first a {type(spec[0]).__name__}" if spec else "")
        raise UsageError(
            f"{name}: expected a buffer, or [buffer, count, datatype] of 2 to 4 items, got a {got}; "
            "for a list of numbers pass np.asarray(...)"
        )
    if len(spec) == 4:
        return spec[0], spec[1], spec[2], spec[3]
    buffer, count = spec[0], spec[1]
    datatype = spec[2] if len(spec) == 3 else None
    if len(spec) == 2 and isinstance(count, (MPI.Datatype, str)):
        return buffer, None, None, count
    if isinstance(count, tuple) or (lists and isinstance(count, list)):
        if len(count) != 2:
            raise UsageError(
                f"{name}: expected the pair (count, displacement), got {count!r}; counts alone go in a list, "
                "for those collectives that take one for each rank"
            )
        return buffer, count[0], count[1], datatype
    return buffer, count, None, datatype


def _typed(buffer: Any, datatype: Any, name: str, writable: bool) -> View:
    if datatype is None:
        return view(buffer, name, writable)
    dtype, kind = _element(datatype, name)
    if buffer is None:  # nothing, from a rank that has nothing
        return View(nothing := np.empty(0, dtype), kind, nothing)
    whole = view(buffer, name, writable)
    return whole if kind == whole.kind else whole.reinterpret(dtype, kind, name, writable)


def _element(datatype: Any, name: str) -> tuple[np.dtype[Any], str]:
    """The dtype and kind of an MPI datatype or of mpi4py's code for one."""
    try:
        if isinstance(datatype, str):
            if datatype in _EXTRA_CODES:
                return _EXTRA_CODES[datatype]
            datatype = MPI.Datatype.fromcode(datatype)
        elif not isinstance(datatype, MPI.Datatype):
            raise TypeError(f"a {type(datatype).__name__} is no datatype")
        code = datatype.tocode() if datatype != MPI.DATATYPE_NULL else ""
        dtype = np.dtype("u1" if code in ("c", "S1") else code)  # C's char: a byte
        return dtype, KINDS[dtype]
    except (TypeError, ValueError, KeyError) as error:
        known = isinstance(datatype, MPI.Datatype) and datatype != MPI.DATATYPE_NULL
        got = f"datatype {datatype.name or 'without a name'}" if known else repr(datatype)
        raise UsageError(
            f"{name}: expected a basic MPI datatype, such as MPI.FLOAT or 'f', got {got}; derived datatypes, pairs and "
            "long doubles are not supported: pass a NumPy view of the elements (strided ones are fine)"
        ) from error


def _part(whole: View, start: int, n: int, name: str) -> View:
    if n < 0 or start + n > whole.size:
        raise UsageError(
            f"{name}: expected count and displacement inside the buffer of {whole.size} elements of {whole.kind}, "
            f"got {max(n, 0)} elements from {start}; pass a larger buffer or a smaller count"
        )
    return whole.part(start, n)


def _integer(value: Any, what: str, name: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise UsageError(f"{name}: expected a {what} of 0 or more elements, an integer, got {value!r}; fix the spec")
    return number


def _integers(values: Any, what: str, name: str, size: int) -> list[int]:
    """`size` integers, or an empty list where `values` is no sequence (`size` is never 0)."""
    if isinstance(values, str) or not hasattr(values, "__len__") or getattr(values, "shape", None) == ():
        return []
    if len(values) != size:
        raise UsageError(f"{name}: expected {size} {what}, one for each rank, got {len(values)}: {values!r}")
    return [_integer(value, f"list of {what}, each", name) for value in values]
