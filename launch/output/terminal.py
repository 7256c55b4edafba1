"""The launcher's terminal, handed to rank 0 by name.

mpiexec's pipe will not do for a progress bar: Open MPI's mpirun passes stderr on by whole lines only.
"""

import os
import socket
import sys
from typing import TextIO

from psgd.launch.output import merged
from psgd.runtime.new_files import AS_NAMES

VARIABLE = "PSGD_TERMINAL"


def name() -> str | None:
    """Names the terminal behind this process's stderr as `host:path`; None where it is no terminal."""
    try:
        return f"{socket.gethostname()}:{os.ttyname(sys.stderr.fileno())}"
    except (OSError, ValueError):
        return None


def find() -> TextIO | None:
    """Opens the terminal for progress: the launcher's if on this host, or stderr if it is one.

    None where there is none. The caller closes what it gets, unless that is stderr.
    """
    host, _, path = os.environ.get(VARIABLE, "").partition(":")
    if path and host == socket.gethostname():
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NOCTTY)
        except OSError:
            return None
        if os.isatty(descriptor):
            return open(descriptor, "w", errors=AS_NAMES)
        os.close(descriptor)
    try:
        # Merged with stdout it may be a terminal that Open MPI made for its own use.
        return sys.stderr if sys.stderr.isatty() and merged.VARIABLE not in os.environ else None
    except ValueError:
        return None
