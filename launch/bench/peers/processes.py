"""RunContext in processes of their own that always end: by themselves, on time-out, or with their parent."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psgd
from psgd.launch import threads


def environment() -> dict[str, str]:
    """This process's environment for a child: one thread, psgd importable, PyTorch's sockets on loopback."""
    env = dict(os.environ)
    env.update(dict.fromkeys(threads.VARIABLES, "1"))
    root = str(Path(psgd.__file__).resolve().parent.parent)
    env["PYTHONPATH"] = os.pathsep.join(part for part in (root, env.get("PYTHONPATH", "")) if part)
    if sys.platform == "linux":
        env["GLOO_SOCKET_IFNAME"] = env["TP_SOCKET_IFNAME"] = "lo"
    return env


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module with this interpreter."""
    return [sys.executable, "-m", module, *arguments]


def start(command: Sequence[str], *, stdin: int, stderr: int) -> subprocess.Popen[str]:
    """Starts `command` as the head of a process group of its own, in `environment()`, stdout a text pipe."""
    return subprocess.Popen(
        command,
        env=environment(),
        text=True,
        start_new_session=True,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
    )


def stop(process: subprocess.Popen[str], grace_s: float = 2.0) -> None:
    """Ends a process started by `start` with all its children, and waits for it. Does nothing twice."""
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def output(command: Sequence[str], timeout_s: float) -> str:
    """Runs `command` to its end and returns its stdout.

    Raises:
        RuntimeError: it failed or took longer than `timeout_s`; the message ends with its last words.
    """
    process = start(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no result within {timeout_s:.0f} s: {' '.join(command)}") from None
    finally:
        stop(process)
    if process.returncode:
        last = "\n".join(err.strip().splitlines()[-5:])
        raise RuntimeError(f"exit code {process.returncode}: {' '.join(command)}\n{last}")
    return out
