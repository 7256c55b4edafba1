"""Memory that ranks of one node share: anonymous, gone with its last user, however that ends.

The owner makes a memory file without a name (memfd) and sends others its address: a process and descriptor number
and a random token. A process that can open it and finds the token there reads and writes the same pages; one that
cannot (another node, another container, another user) finds out, and uses messages instead. Nothing lies in /dev/shm,
so its size does not matter and a killed job leaves nothing behind.
"""

import contextlib
import errno
import mmap
import os
import secrets
from collections.abc import Mapping

import numpy as np
from numpy.typing import DTypeLike, NDArray

from psgd.collectives.mpi import env

OFFSET = 64  # the token's place; the array behind it starts a cache line
_TOKEN_BYTES = 16


def enabled() -> bool:
    """Whether shared memory may be used: `PSGD_SHARED=0` in the environment switches it off.

    Raises:
        UsageError: that variable is neither 0 nor 1.
    """
    return env.shared() and hasattr(os, "memfd_create")


class SharedArray:
    """A 1-D array, zero at first, that other processes of this node can attach to.

    Args:
        size: elements.
        dtype: of the elements.

    Attributes:
        array: the memory; it stays valid while the array or a view of it is alive, here or elsewhere.

    Raises:
        OSError: the system does not give the memory.
    """

    def __init__(self, size: int, dtype: DTypeLike) -> None:
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._file = os.memfd_create("psgd", os.MFD_CLOEXEC)
        try:
            nbytes = OFFSET + size * np.dtype(dtype).itemsize
            if nbytes > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
                raise OSError(errno.ENOMEM, "more than this machine's memory")  # the kernel would kill someone for it
            os.posix_fallocate(self._file, 0, nbytes)  # no memory left is an error now, not a SIGBUS later
            memory = _map(self._file, nbytes)
        except OSError:
            os.close(self._file)
            raise
        memory[:_TOKEN_BYTES] = self._token
        self.array: NDArray[np.generic] = np.frombuffer(memory, dtype, size, OFFSET)

    def address(self) -> dict[str, str | int]:
        """What `attach` needs, to be sent as text."""
        return {"process": os.getpid(), "file": self._file, "token": self._token.hex()}

    def seal(self) -> None:
        """Nobody else will attach: closes the file. The memory stays."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def attach(address: Mapping[str, str | int], size: int, dtype: DTypeLike) -> NDArray[np.generic] | None:
    """The array behind an address, or None where its memory cannot be reached from here.

    Args:
        address: what the owner's `address()` gave.
        size: elements that the owner made.
        dtype: as the owner made it.
    """
    nbytes = OFFSET + size * np.dtype(dtype).itemsize
    try:
        path = f"/proc/{int(address['process'])}/fd/{int(address['file'])}"
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError, KeyError):
        return None
    try:
        if os.fstat(file).st_size != nbytes:
            return None
        memory = _map(file, nbytes)
    except OSError:
        return None
    finally:
        os.close(file)
    if memory[:_TOKEN_BYTES].hex() != address.get("token"):
        return None
    return np.frombuffer(memory, dtype, size, OFFSET)


def _map(file: int, nbytes: int) -> mmap.mmap:
    memory = mmap.mmap(file, nbytes)
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
