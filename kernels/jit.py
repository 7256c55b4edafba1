"""One way to compile a host kernel: cached on disk, GIL released, no fast-math (results repeat bit for bit)."""

import contextlib
import functools
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compiles `function` with Numba on its first call and keeps the machine code on disk.

    The GIL is released while it runs. Fast-math is off and no contraction is allowed, so that the same
    inputs give the same bits on every rank of one machine type.
    """
    import numba

    compile_ = functools.partial(numba.njit, nogil=True, fastmath=False, error_model="numpy")
    try:
        compiled: F = compile_(function, cache=True)
        _depend_on_all(compiled, Path(function.__code__.co_filename).parent)
    except RuntimeError:  # neither beside the file nor in the home may a cache be written: compile each time
        compiled = compile_(function)
    return compiled


def lazy_kernel(function: F) -> F:
    """A `kernel` for which Numba is not even imported before its first call. Other kernels cannot call it."""
    compiled: Any = None

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        nonlocal compiled
        if compiled is None:
            compiled = kernel(function)
        return compiled(*arguments)

    return call  # type: ignore[return-value]


def part(function: F) -> F:
    """Compiles `function` as a part of the kernels that call it: Python cannot call it, and it is not cached alone."""
    import numba

    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    compiled: F = numba.njit(function, nogil=True, fastmath=False, error_model="numpy", **options)
    return compiled


def intrinsic(function: Callable[..., object]) -> Any:
    """Numba's decorator of that name, for instructions that Python cannot say."""
    from numba.extending import intrinsic as numba_intrinsic

    return numba_intrinsic(function)


def compile_callback(signature: Any, function: Callable[..., object]) -> Any:
    """Compiles `function` for one signature with an address that any compiled code can call; cached like a kernel."""
    try:
        compiled = _callback(signature, function, True)
    except RuntimeError:
        compiled = _callback(signature, function, False)
    return compiled


def _callback(signature: Any, function: Callable[..., object], cached: bool) -> Any:
    from numba.core.ccallback import CFunc
    from numba.core.typing.templates import Signature

    assert isinstance(signature, Signature)
    callback = CFunc(function, (signature.args, signature.return_type), locals={}, options={"error_model": "numpy"})
    if cached:
        callback.enable_caching()
        _depend_on_all(callback, Path(function.__code__.co_filename).parent)
    callback.compile()
    return callback


def _depend_on_all(compiled: Any, folder: Path) -> None:
    """Has the cached code used only while all that it may be made of is unchanged.

    Numba looks at the file of the function alone, not at those of the functions and constants that it uses.
    """
    with contextlib.suppress(AttributeError):  # another Numba may keep it elsewhere
        file = compiled._cache._cache_file
        file._source_stamp = (*file._source_stamp, _sources(folder), _sources(Path(__file__).parent))


@functools.cache
def _sources(folder: Path) -> int:
    """A checksum of a folder's source files and those of its sub-rooms."""
    total = 0
    for path in sorted(folder.rglob("*.py")):
        total = zlib.crc32(path.read_bytes(), total)
    return total
