"""Numba's compiled functions in a `CodeStore`: compiled once a machine, by one rank.

It stands where Numba's own cache would. That one ends a program whose cache is damaged or cannot be written, mixes up
machine code for two processors that start at once, and unpickles what other users left in its folder.
"""

import contextlib
import functools
import hashlib
import os
import pickle
import platform
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import compiler, serialize, sigutils

from psgd.kernels.cache import notices
from psgd.kernels.cache.code_store import CodeStore

_ROOMS = Path(__file__).parents[1]


class CodeCache:
    """The machine code of one function, in the place of Numba's own cache.

    Args:
        function: in Python.
        compile_: compiles it for the types of arguments and of the result, which may be None.
        context: what code is compiled for.
        register: makes code that was read known to those who call it.
    """

    def __init__(
        self,
        function: Callable[..., object],
        compile_: Callable[[Any, Any], Any],
        context: Any,
        register: Callable[[Any], None],
    ) -> None:
        file, cells = Path(function.__code__.co_filename), [cell.cell_contents for cell in function.__closure__ or ()]
        self._name = f"{file.stem}.{function.__qualname__.rpartition('.')[2]}"
        self._own = repr((str(file), function.__qualname__)).encode() + serialize.dumps(tuple(cells))
        self._sources = sources(file.parent), sources(_ROOMS)
        self._compile, self._context, self._register = compile_, context, register

    def load_overload(self, signature: Any, context: Any) -> Any:
        """What Numba asks first: code that is there, or None."""
        context.refresh()
        return self._load(*self._key(*sigutils.normalize_signature(signature)))

    def save_overload(self, signature: Any, result: Any) -> None:
        """What Numba does last. Nothing is left to do: `compile` has."""

    def compile(self, arguments: Any, result_type: Any) -> Any:
        """What Numba asks next: compiles, or waits until another process has."""
        name, stamp = self._key(arguments, result_type)
        kept, unusable = store(), store().unusable
        with notices.compiling(kept), kept.alone(name):
            found = self._load(name, stamp)  # again: another process may have put it since Numba asked
            if found is not None:
                self._register(found)
                return found
            if unusable is not None:
                notices.warn(kept, "unusable", f"compiling again, since the cached code cannot be used: {unusable}")
            made = self._compile(arguments, result_type)
            if not made.library.has_dynamic_globals:
                try:
                    kept.put(name, stamp, serialize.dumps(made._reduce()))
                except OSError as error:
                    notices.warn(kept, "put", f"compiled code cannot be cached in {kept.folder}: {error.strerror}")
            return made

    def _key(self, arguments: Any, result_type: Any) -> tuple[str, bytes]:
        """The name of a file, and what else must be the same: Numba looks at one source file alone."""
        where = self._context.codegen().magic_tuple(), str(arguments), str(result_type), sys.implementation.cache_tag
        digest = hashlib.sha256(repr(where).encode() + self._own).hexdigest()[:24]
        versions = numba.__version__, llvmlite.__version__, platform.python_version(), self._sources
        return f"{self._name}-{digest}", repr(versions).encode()

    def _load(self, name: str, stamp: bytes) -> Any:
        content = store().get(name, stamp)
        if content is None:
            return None
        try:
            return compiler.CompileResult._rebuild(self._context, *pickle.loads(content))
        except Exception as error:  # whatever it is, compiling again helps
            store().unusable = f"{name}: {type(error).__name__}: {error}"
            return None


@functools.cache
def store() -> CodeStore:
    """Where this process keeps machine code; says once where it cannot."""
    found = CodeStore(folders())
    if found.folder is None:
        notices.warn(
            found, "store", f"kernels are compiled at every start, since no cache is usable: {'; '.join(found.refused)}"
        )
    return found


def folders() -> list[Path]:
    """Where machine code may be kept: NUMBA_CACHE_DIR alone, or beside the source and then in the home."""
    if numba.config.CACHE_DIR:
        return [Path(numba.config.CACHE_DIR) / "psgd"]
    found = [_ROOMS / "__pycache__" / "compiled"]
    with contextlib.suppress(RuntimeError):  # no home
        found.append(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "psgd" / "compiled")
    return found


@functools.cache
def sources(folder: Path) -> int:
    """A checksum of a folder's source files and those of its sub-rooms."""
    total = 0
    for path in sorted(folder.rglob("*.py")):
        total = zlib.crc32(path.read_bytes(), total)
    return total
