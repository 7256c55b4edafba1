"""A second process to try things in: what may fail, hang, or cannot be undone."""

import os
import subprocess
import sys
from pathlib import Path

import psgd
from psgd.runtime.launcher_env import apart


def output(code: str, *arguments: str, timeout_s: float = 30.0) -> str | None:
    """What Python code prints in a process of its own, or None where it fails or hangs. Blocks."""
    env = {"OMPI_MCA_btl": "^ofi", **apart(os.environ)}
    # Not from the user's folder: a struct.py there would be imported in place of Python's. psgd may be from there.
    root = str(Path(psgd.__file__).resolve().parent.parent)
    command = [sys.executable, "-c", f"import sys; sys.path[:1] = []; sys.path.append({root!r})\n{code}", *arguments]
    try:
        done = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
