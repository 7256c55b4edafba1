"""One way to compile a host kernel: kept on disk, GIL released, no fast-math (results repeat bit for bit)."""

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compiles `function` with Numba on its first call, or reads what `code_cache` has kept of it.

    The GIL is released while it runs. Fast-math is off and no contraction is allowed (a formula that wants one says so:
    `update.multiply_add`), so that the same inputs give the same bits on every rank of one machine type.
    """
    compiled: Any = _compiled(function)
    if compiled is function:  # NUMBA_DISABLE_JIT
        return function
    context = compiled.targetctx
    _keep(
        compiled,
        function,
        context,
        lambda found: context.insert_user_function(found.entry_point, found.fndesc, [found.library]),
    )
    return compiled  # type: ignore[no-any-return]


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
    """Compiles `function` as a part of the kernels that call it: Python cannot call it, and it is not kept alone."""
    return _compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def inlined_part(function: F) -> F:
    """A `part` that is written out where it is called, so that arrays which are one there are known to be one."""
    return _compiled(function, inline="always")


def intrinsic(function: Callable[..., object]) -> Any:
    """Numba's decorator of that name, for instructions that Python cannot say."""
    from numba.extending import intrinsic as numba_intrinsic

    return numba_intrinsic(function)


def compile_callback(signature: Any, function: Callable[..., object]) -> Any:
    """Compiles `function` for one signature with an address that any compiled code can call; kept like a kernel."""
    from numba.core.ccallback import CFunc

    options = {"error_model": "numpy"}
    callback: Any = CFunc(function, (signature.args, signature.return_type), locals={}, options=options)
    _keep(callback, function, callback._targetdescr.target_context, lambda found: None)
    callback.compile()
    return callback


def _compiled(function: F, **options: Any) -> F:
    import numba

    made: F = numba.njit(function, nogil=True, fastmath=False, error_model="numpy", **options)
    return made


def _keep(compiled: Any, function: Callable[..., object], context: Any, register: Callable[[Any], None]) -> None:
    """Puts our cache in the place of Numba's; nothing is kept of a function that has no source file."""
    if not os.path.isfile(function.__code__.co_filename):
        return
    from psgd.kernels.cache.code_cache import CodeCache

    cache = CodeCache(function, compiled._compiler.compile, context, register)
    compiled._cache, compiled._compiler.compile = cache, cache.compile
