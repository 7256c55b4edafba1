"""`FILE.py:FUNCTION`: what a user's file is called on the command line, and what is wrong with it before it is run."""

import difflib
import hashlib
import symtable
import warnings
from dataclasses import dataclass
from pathlib import Path

from psgd.kernels.errors import UsageError

FORM = "FILE.py:FUNCTION"


@dataclass(frozen=True)
class Reference:
    """A function in a file.

    Attributes:
        option: that names it, `--model`, for messages.
        text: as the user wrote it.
        path: of the file.
        function: its name.
    """

    option: str
    text: str
    path: Path
    function: str

    @property
    def name(self) -> str:
        """The file's name, without its folder, and the function's: what a checkpoint has of them."""
        return f"{self.path.name}:{self.function}"

    @property
    def where(self) -> str:
        """Both as a message begins."""
        return f"{self.option} {self.text}"

    def read(self) -> bytes:
        """The file's contents.

        Raises:
            UsageError: it cannot be read.
        """
        try:
            return self.path.read_bytes()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UsageError(f"{self.where}: {self.path} cannot be read: {reason}") from None


def is_reference(text: str) -> bool:
    """Whether a text has the form `FILE.py:FUNCTION`."""
    path, colon, function = text.rpartition(":")
    return bool(colon) and path.endswith(".py") and function.isidentifier()


def find(option: str, text: str) -> Reference | None:
    """The reference that an option's value is; None where it is a name or a folder."""
    if not is_reference(text):
        return None
    path, _, function = text.rpartition(":")
    return Reference(option, text, Path(path).expanduser(), function)


def plain(text: str) -> str:
    """A reference without its folder, so that a run may be resumed from elsewhere; any other text as it is."""
    found = find("", text)
    return text if found is None else found.name


def absolute(text: str) -> str:
    """A reference with its file's absolute path, for a job that starts in another folder; any other text as it is."""
    found = find("", text)
    return text if found is None else f"{found.path.absolute()}:{found.function}"


def checksum(source: bytes) -> str:
    """Of a file's contents, as a checkpoint has it."""
    return hashlib.sha256(source).hexdigest()


def check(reference: Reference) -> None:
    """Looks at the file without running it: is it there, is it Python, does it define the function?

    Raises:
        UsageError: one of these is not so.
    """
    source = reference.read()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, str(reference.path), "exec", dont_inherit=True)
            table = symtable.symtable(source, str(reference.path), "exec")  # type: ignore[arg-type]  # takes bytes too
    except SyntaxError as error:
        at = f", line {error.lineno}" if error.lineno else ""
        raise UsageError(f"{reference.where}: not Python: {error.msg} ({reference.path.name}{at})") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{reference.where}: not Python: {error}") from None
    symbols = [each for each in table.get_symbols() if each.is_assigned() or each.is_imported()]
    if reference.function not in {each.get_name() for each in symbols} and not _hides_names(source):
        raise UsageError(missing(reference, [each.get_name() for each in symbols if each.is_namespace()]))


def missing(reference: Reference, defined: list[str]) -> str:
    """Says that the file has no such function, and which it has."""
    near = difflib.get_close_matches(reference.function, defined, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it defines {', '.join(defined[:6]) or 'none'}"
    return f"{reference.where}: {reference.path.name} has no function {reference.function}; {hint}"


def _hides_names(source: bytes) -> bool:
    """Whether a module may get names that only running it shows."""
    return any(word in source for word in (b"import *", b"globals(", b"global ", b"exec(", b"__getattr__"))
