"""What the system and MPI expect around a process: a working folder, a home, a folder for temporary files."""

import contextlib
import os

from psgd.kernels.errors import UsageError


def prepare() -> None:
    """Gives Open MPI the variables without which it does not start, or crashes at its end.

    A home, which some services and containers do not set; and a folder for temporary files that can be written, where
    the one that TMPDIR names cannot: Python takes the next one in silence, Open MPI does not.
    """
    os.environ.setdefault("HOME", os.path.expanduser("~") if os.path.isabs(os.path.expanduser("~")) else "/")
    if any(name in os.environ for name in ("TMPDIR", "TEMP", "TMP")):
        import tempfile

        with contextlib.suppress(OSError):  # there is none at all; whoever needs one says so
            os.environ["TMPDIR"] = tempfile.gettempdir()


def check() -> None:
    """Looks whether there is a working folder, against which names of files are read.

    Raises:
        UsageError: it was removed, or this user may not look at it.
    """
    try:
        os.getcwd()
    except OSError as error:
        raise UsageError(f"the working folder: {error.strerror}; was it removed? cd to one that exists") from None
