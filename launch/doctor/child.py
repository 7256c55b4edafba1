"""What other programs tell: a second Python to try things in that may fail, hang, or cannot be undone, and commands."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psgd
from psgd.runtime.launcher_env import apart


def output(code: str, *arguments: str, timeout_s: float = 30.0) -> str | None:
    """What Python code prints in a process of its own, or None where it fails or hangs. Blocks."""
    # Not from the user's folder: a struct.py there would be imported in place of Python's. psgd may be from there.
    root = str(Path(psgd.__file__).resolve().parent.parent)
    program = f"import sys; sys.path[:] = [*filter(None, sys.path), {root!r}]\n{code}"
    env = {"OMPI_MCA_btl": "^ofi", **apart(os.environ)}
    return printed([sys.executable, "-c", program, *arguments], timeout_s=timeout_s, env=env)


def printed(
    words: Sequence[str], errors: bool = False, timeout_s: float = 20.0, env: Mapping[str, str] | None = None
) -> str | None:
    """What a command prints, or None where there is none, or it fails or hangs. Blocks.

    Args:
        words: the command.
        errors: with what it writes to stderr.
        timeout_s: after so long it hangs.
        env: its environment; None is this process's.
    """
    try:
        done = subprocess.run(
            words, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (done.stdout + (done.stderr if errors else "")).strip() if done.returncode == 0 else None


def installed(distribution: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
