"""Files that psgd makes: never through a name or a link that another user could have prepared.

What must be whole (weights, pictures, tables) is written under a name that nobody can guess, and renamed: `replacing`.
What grows beside a run (logs, a record) is opened by `open_text`. A full disk costs such a file, not the run:
`SideFile` says so at once, and `lost` at the end.
"""

import codecs
import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TextIO

from psgd.kernels.errors import UsageError
from psgd.kernels.notice import say

AS_NAMES = "psgd-names"
"""How texts are encoded where names of files are among them: what the encoding lacks, as the system has it."""

_WIDE = ("utf-16", "utf-32")  # in these a byte alone is nothing
_lost: list[str] = []


def _as_names(error: UnicodeError) -> tuple[str | bytes, int]:
    assert isinstance(error, UnicodeEncodeError)
    if error.encoding.lower().startswith(_WIDE):
        return codecs.backslashreplace_errors(error)
    try:
        return os.fsencode(error.object[error.start : error.end]), error.end
    except UnicodeEncodeError:
        return codecs.backslashreplace_errors(error)


codecs.register_error(AS_NAMES, _as_names)


def check(what: str, path: Path, replaced: bool = False) -> None:
    """Checks that a file can be written, without creating it.

    Args:
        what: the option, for the message.
        path: the file.
        replaced: it is written by `replacing`, so that the folder's permissions count, not those of an old file.

    Raises:
        UsageError: its folder is missing, or it cannot be written, or it is a folder itself.
    """
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{what} {path}: expected a file in an existing folder, but {folder} is not a folder")
    try:
        complaint = _prepared(path) or (None if replaced or not path.exists() else _left(path, path.stat()))
    except OSError as error:  # a name that is too long
        raise UsageError(f"{what} {path}: cannot be written: {error.strerror}") from None
    if complaint:
        raise UsageError(f"{what} {path}: {complaint}; remove it or use another name")
    if path.is_dir() or not os.access(folder if replaced or not path.exists() else path, os.W_OK):
        found = "it is a folder" if path.is_dir() else "permission is denied"
        raise UsageError(f"{what} {path}: expected a file that can be written, but {found}")


def make_folder(path: Path) -> None:
    """Makes a folder by the name that a user gave, and those above it; it may be there.

    Raises:
        OSError: it cannot be made, or the name leads through a link that another user made.
    """
    if complaint := _led_away(path.absolute()):
        raise PermissionError(errno.EPERM, complaint, str(path))
    path.mkdir(parents=True, exist_ok=True)


def _new_part(folder: Path) -> tuple[int, Path]:
    """Makes a file that nobody can have prepared: its descriptor and its path."""
    if complaint := _led_away(folder.absolute()):
        raise PermissionError(errno.EPERM, complaint, str(folder))
    part = folder / f".psgd-{secrets.token_hex(8)}.part"
    return os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), part


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that gets its name once it is whole and on the disk; until then there is what was there before.

    Raises:
        OSError: it cannot be written, the disk is full. Then nothing of it is left.
    """
    number, part = _new_part(path.parent)
    try:
        with open(number, "wb") as file:
            yield file
            file.flush()
            os.fsync(number)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def open_named(path: Path, flags: int, mode: int = 0o666) -> int:
    """Opens a file by the name that a user gave, and returns its descriptor. Does not wait for a pipe's reader.

    Raises:
        OSError: it cannot be opened, another user may have prepared what is there, or it is a pipe that nobody reads.
    """
    if complaint := _led_away(path.absolute().parent):
        raise PermissionError(errno.EPERM, complaint, str(path))
    given = flags & ~os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        try:
            number = os.open(path, given | os.O_NOFOLLOW, mode)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            if complaint := _prepared(path):
                raise PermissionError(errno.EPERM, complaint, str(path)) from None
            number = os.open(path, given, mode)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OSError(errno.ENXIO, "it is a pipe that nobody reads", str(path)) from None
    found = os.fstat(number)
    if complaint := _left(path, found):
        os.close(number)
        raise PermissionError(errno.EPERM, complaint, str(path))
    os.set_blocking(number, True)
    if flags & os.O_TRUNC and stat.S_ISREG(found.st_mode):
        os.ftruncate(number, 0)
    return number


_LINK = "a symbolic link that another user made"


def _prepared(path: Path) -> str | None:
    """Whether another user (not root) may have made a name lead elsewhere, in words, or None."""
    if path.is_symlink() and path.lstat().st_uid not in (0, os.geteuid()):
        return f"is {_LINK}"
    return _led_away(path.absolute().parent)


def _led_away(folder: Path) -> str | None:
    """The same of a folder's name. As Linux can have it: links count in folders that all can write to.

    Elsewhere, or by the owner of the folder that they are in, links are how shared file systems are laid out.
    """
    for each in (folder, *folder.parents):
        if each.is_symlink():
            above = each.parent.stat()
            if above.st_mode & stat.S_IWOTH and each.lstat().st_uid not in (0, os.geteuid(), above.st_uid):
                return f"{each} is {_LINK}"
    return None


def _left(path: Path, found: os.stat_result) -> str | None:
    """Whether a file or pipe was left by another user where all can make files, in words, or None."""
    above = path.absolute().parent.stat()
    common = above.st_mode & stat.S_ISVTX and above.st_mode & stat.S_IWOTH
    kind = stat.S_ISREG(found.st_mode) or stat.S_ISFIFO(found.st_mode)
    theirs = found.st_uid not in (0, os.geteuid(), above.st_uid)
    return "is a file that another user made, in a folder that all can write to" if common and kind and theirs else None


def open_text(path: Path, append: bool = False) -> TextIO:
    """Opens a text file to write line by line.

    Args:
        path: the file.
        append: what is in it stays, and a last line that has no end gets one; else it is overwritten.

    Raises:
        OSError: it cannot be opened.
    """
    number = open_named(path, os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else os.O_TRUNC))
    file = open(number, "w", encoding="utf-8", errors=AS_NAMES, buffering=1)  # noqa: SIM115 -- the caller closes it
    if append and _is_torn(number, path):
        with contextlib.suppress(OSError):  # the next write fails too, and is reported
            os.write(number, b"\n")
    return file


def open_bytes(path: Path) -> BinaryIO:
    """Opens a new file to write; each write reaches the system at once.

    Raises:
        OSError: it cannot be made, or there is one of that name.
    """
    return open(open_named(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb", buffering=0)  # type: ignore[return-value]


def _is_torn(number: int, path: Path) -> bool:
    """Whether the file ends within a line, as a crash leaves it."""
    found = os.fstat(number)
    if not stat.S_ISREG(found.st_mode) or not found.st_size:
        return False
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() != b"\n"
    except OSError:
        return True  # not to be read: an empty line does no harm


def own_folder(path: Path) -> None:
    """Makes a folder, which another rank may have made.

    Raises:
        OSError: it cannot be made, or what has its name is no folder of this user.
    """
    path.mkdir(exist_ok=True)
    found = path.lstat()
    ours = stat.S_ISDIR(found.st_mode)
    if ours:  # whose it is shows beside a file in it: some file systems give all files one owner
        number, part = _new_part(path)
        ours = os.fstat(number).st_uid == found.st_uid
        os.close(number)
        part.unlink()
    if not ours:
        raise PermissionError(errno.EPERM, "it belongs to another user", str(path))


def lose(what: str, error: OSError | str, stream: TextIO | None = None) -> None:
    """Warns, the first time, that a file which a run writes beside its work cannot be written; the run goes on.

    Args:
        what: names the file.
        error: why.
        stream: where to warn; None is stderr.
    """
    if what not in _lost:
        _lost.append(what)
        say(f"warning: {what}: {error if isinstance(error, str) else f'{error.strerror}; it ends here'}", stream)


def lost() -> list[str]:
    """What was lost in this process."""
    return list(_lost)


class SideFile:
    """A file beside a run: a write that fails costs the file, not the run.

    Args:
        what: names it in the warning.
        file: open, of text or bytes; None writes nothing.
    """

    def __init__(self, what: str, file: TextIO | BinaryIO | None) -> None:
        self._what, self._file = what, file

    @property
    def open(self) -> bool:
        """Whether what is written still goes anywhere."""
        return self._file is not None

    def write(self, content: str | bytes) -> None:
        """Writes, as far as there is a file still."""
        self._do("write", content)

    def flush(self) -> None:
        """Hands over to the system what was written."""
        self._do("flush")

    def close(self) -> None:
        """Closes the file. May be called twice."""
        self._do("close")
        self._file = None

    def _do(self, name: str, *arguments: str | bytes) -> None:
        if self._file is None:
            return
        try:
            getattr(self._file, name)(*arguments)
        except OSError as error:
            lose(self._what, error)
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
