"""Files that appear whole or not at all, and reading what may be anything."""

import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from psgd.kernels.errors import CheckpointError
from psgd.runtime.new_files import replacing

MOST_JSON_BYTES = 64 << 20


def write_whole(path: Path, chunks: Iterable[bytes | memoryview]) -> int:
    """Writes a file that appears whole or not at all; returns its size.

    Raises:
        OSError: it cannot be written, the disk is full.
    """
    with replacing(path) as file:
        for chunk in chunks:
            file.write(chunk)
        return file.tell()


def sync_folder(path: Path) -> None:
    """Puts a folder's names on the disk."""
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def open_plain(path: Path) -> IO[bytes]:
    """Opens a file to read that must be a plain one: a link or a pipe under its name is refused, never waited for.

    Raises:
        CheckpointError: it is not there, not readable, or not a plain file.
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(f"{path}: cannot be read: {reason}") from None
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise CheckpointError(f"{path}: expected a plain file")
    return open(number, "rb")


def read_text(path: Path) -> bytes:
    """Reads a JSON file's text.

    Raises:
        CheckpointError: not readable, or too long.
    """
    with open_plain(path) as file:
        text = file.read(MOST_JSON_BYTES + 1)
    if len(text) > MOST_JSON_BYTES:
        raise CheckpointError(f"{path}: expected at most {MOST_JSON_BYTES} bytes of JSON")
    return text


def parse_object(text: str | bytes, where: str) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        CheckpointError: it is none.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: expected a JSON object, got a {type(value).__name__}")
    return value
