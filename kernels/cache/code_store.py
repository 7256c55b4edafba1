"""Files of machine code: private, checked, replaced in one piece, and made by one process while the others wait.

What is read here is executed, so it is read only where nobody else could have written it: in folders and files of this
user, of root, or of whoever owns psgd's own source. A file says which code it has, and has its checksum: whatever was
truncated or overwritten counts as missing.
"""

import contextlib
import fcntl
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

WAIT_S = 300.0
"""How long a process waits for others that compile, all kernels together, before it compiles by itself."""
_MAGIC = b"psgd machine code 1\n"
_DIGEST = 32
_LOOK_S = 0.02, 0.5


class CodeStore:
    """Named files in the first of some folders that can be written; the others are read as well.

    Args:
        folders: the best first.

    Attributes:
        folder: where files are written; None where none can be.
        refused: for each folder that is not written, why.
        unusable: of the file looked for last, why it was not used though it is there.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folder: Path | None = None
        self.refused: list[str] = []
        self.unusable: str | None = None
        self._read: list[Path] = []
        self._patience = WAIT_S
        for folder in folders:
            complaint = _made(folder) if self.folder is None else None
            if complaint is None and self.folder is None:
                self.folder = folder
            if complaint is not None:
                self.refused.append(f"{folder}: {complaint}")
            if _trusted(folder) is None:
                self._read.append(folder)

    def get(self, name: str, stamp: bytes) -> bytes | None:
        """The content of a file that was put with this stamp; None where there is none, or a damaged one."""
        self.unusable = None
        for folder in self._read:
            try:
                with open(os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
                    complaint, data = _foreign(os.fstat(file.fileno())), file.read()
            except FileNotFoundError:
                continue
            except OSError as error:
                complaint, data = error.strerror, b""
            head, content = data[: len(_head(name, stamp))], data[len(_head(name, stamp)) + _DIGEST :]
            if complaint is None and head == _head(name, stamp):
                if data[len(head) : len(head) + _DIGEST] == hashlib.sha256(content).digest():
                    return content
                complaint = "it is damaged"
            elif not data.startswith(_MAGIC):  # else it is another version's
                complaint = complaint or "it is damaged"
            if complaint is not None:
                self.unusable = f"{folder / name}: {complaint}"
        return None

    def put(self, name: str, stamp: bytes, content: bytes) -> None:
        """Writes or replaces a file, so that others see all of it or nothing.

        Raises:
            OSError: it cannot be written.
        """
        if self.folder is None:
            return
        handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=self.folder)
        try:
            with open(handle, "wb") as file:
                os.fchmod(handle, 0o644)
                file.write(_head(name, stamp) + hashlib.sha256(content).digest() + content)
            os.replace(temporary, self.folder / name)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    @contextlib.contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """Waits while another process makes the file, and keeps others waiting meanwhile.

        The kernel ends a dead process's turn. It is not waited for one that has stopped for longer than `WAIT_S`, nor
        where the file system has no locks: then several may make the same file, which does no harm.
        """
        handle, nap = self._open_lock(name), _LOOK_S[0]
        try:
            while handle is not None and self._patience > 0:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(nap)
                    self._patience -= nap
                    nap = min(1.5 * nap, _LOOK_S[1])
                except OSError:
                    break
            yield
        finally:
            if handle is not None:
                os.close(handle)

    def first(self, name: str) -> bool | None:
        """Whether this is the first of the processes now alive to ask with a name; None where nobody can tell."""
        handle = self._open_lock(name)
        if handle is None:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # kept to the end of the process
        except OSError as error:
            os.close(handle)
            return False if isinstance(error, BlockingIOError) else None
        return True

    def _open_lock(self, name: str) -> int | None:
        if self.folder is None:
            return None
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(self.folder / f"{name}.lock", flags, 0o600)  # what others may open, others may lock
        except OSError:
            return None


def _head(name: str, stamp: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(name.encode() + stamp).digest()


def _made(folder: Path) -> str | None:
    """Makes a folder, and says why it cannot be written, or None."""
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if (complaint := _trusted(folder)) is not None:
            return complaint
        with tempfile.NamedTemporaryFile(prefix=".", suffix=".tmp", dir=folder) as file:
            file.write(bytes(4096))  # a full disk may still make empty files
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _trusted(folder: Path) -> str | None:
    """Why nothing that lies in a folder may be executed, or None."""
    try:
        found = os.stat(folder)
    except OSError as error:
        return error.strerror
    return _foreign(found) if stat.S_ISDIR(found.st_mode) else "not a folder"


def _foreign(found: os.stat_result) -> str | None:
    """Who else can have written a file or folder, or None."""
    if found.st_uid not in (0, os.geteuid(), os.stat(__file__).st_uid):
        return f"it belongs to another user ({found.st_uid})"
    return "others can write there" if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None
