"""Runs a user's file, and calls a function of it; what goes wrong there is one message that names file and line."""

import inspect
import random
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from psgd.kernels.errors import UsageError
from psgd.user import reference as references
from psgd.user.reference import Reference

_RUN: dict[Path, tuple[str, ModuleType]] = {}
"""By path: the checksum of what was run, and the module. A file with a model and a dataset is run once."""


@dataclass(frozen=True)
class Script:
    """A function of a file that was run.

    Attributes:
        reference: its name.
        function: itself.
        checksum: of the file's contents.
    """

    reference: Reference
    function: Callable[..., Any]
    checksum: str

    def call(self, seed: int, *arguments: object) -> Any:
        """Calls the function: with `arguments` if it has parameters without defaults, else with none.

        Before, the generators of `random`, NumPy and PyTorch, where these are loaded, start from the seed.

        Raises:
            UsageError: it takes another number of arguments, or raises.
        """
        wanted = _required(self.reference, self.function)
        if wanted not in (0, len(arguments)):
            most = " or ".join(["none", *(["one, the description of the data"] if arguments else [])])
            raise UsageError(
                f"{self.reference.where}: expected a function with {most} of its parameters without a default, got "
                f"{wanted}"
            )
        seed_all(seed)
        return guarded(self.reference, "raised", self.function, *arguments[:wanted])


def load(reference: Reference) -> Script:
    """Runs the file, unless that was done before, and finds the function.

    Its folder is the last place where Python looks for modules, so that the file can import others beside it.

    Raises:
        UsageError: it cannot be read or run, or has no such function.
    """
    path = reference.path.resolve()
    source = reference.read()
    checksum = references.checksum(source)
    if path not in _RUN or _RUN[path][0] != checksum:
        references.check(reference)
        _RUN[path] = checksum, _run(reference, path, source)
    module = _RUN[path][1]
    try:
        function = getattr(module, reference.function)
    except AttributeError:
        defined = [name for name, value in vars(module).items() if inspect.isroutine(value)]
        raise UsageError(references.missing(reference, defined)) from None
    if not callable(function):
        raise UsageError(f"{reference.where}: expected a function, got {type(function).__name__}")
    return Script(reference, function, checksum)


def _run(reference: Reference, path: Path, source: bytes) -> ModuleType:
    module = ModuleType(f"psgd_user_{path.stem}")  # a file torch.py must not be the module of that name
    module.__file__ = str(path)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    sys.modules[module.__name__] = module  # where dataclasses look for it
    code = compile(source, str(path), "exec", dont_inherit=True)
    guarded(reference, "cannot be loaded:", exec, code, vars(module))
    return module


def guarded(reference: Reference, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function of the user's.

    Args:
        reference: whose it is.
        what: says what has failed.
        function: called.
        arguments: of the function.

    Raises:
        UsageError: it raised something, or wanted to exit.
    """
    try:
        return function(*arguments)
    except (Exception, SystemExit) as error:
        path = str(reference.path.resolve())
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        at = f" ({reference.path.name}, line {lines[-1]})" if lines else ""
        hint = "; pip install 'psgd[torch]'" if getattr(error, "name", None) == "torch" else ""
        said = " ".join(str(error).split())
        raise UsageError(
            f"{reference.where}: {what} {type(error).__name__}{': ' if said else ''}{said[:500]}{at}{hint}"
        ) from error


def seed_all(seed: int) -> None:
    """Starts the generators that a user's file may draw from, where their packages are loaded."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def _required(reference: Reference, function: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of some built-in callables nobody knows
        return 0
    needed = [each for each in parameters if each.default is each.empty and each.kind not in _OPEN]
    if any(each.kind is each.KEYWORD_ONLY for each in needed):
        raise UsageError(f"{reference.where}: expected no keyword-only parameters without a default")
    return len(needed)


_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
