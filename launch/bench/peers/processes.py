"""Peers in processes of their own that always end: by themselves, on time-out, or with their parent."""

import contextlib
import ctypes
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import psgd
from psgd.launch import signal_forwarding, supervise, threads

TIMEOUT_S = 120.0
_PR_SET_PDEATHSIG = 1


def environment() -> dict[str, str]:
    """This process's environment for a child: one thread, this psgd importable, PyTorch's sockets on loopback."""
    env = dict(os.environ)
    env["PYTHONSAFEPATH"] = "1"  # else `python -m` looks for psgd in the current folder first
    env.update(dict.fromkeys(threads.VARIABLES, "1"))
    root = str(Path(psgd.__file__).resolve().parent.parent)
    env["PYTHONPATH"] = os.pathsep.join(part for part in (root, env.get("PYTHONPATH", "")) if part)
    if sys.platform == "linux":
        env["GLOO_SOCKET_IFNAME"] = env["TP_SOCKET_IFNAME"] = "lo"
    return env


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module with this interpreter."""
    return [sys.executable, "-m", module, *arguments]


def launcher_cores() -> set[int]:
    """The cores of the process that started this one: mpiexec binds a rank, and with it all that the rank starts."""
    try:
        return os.sched_getaffinity(os.getppid())
    except OSError:
        return os.sched_getaffinity(0)
    except AttributeError:  # a system that binds nobody
        return set(range(os.cpu_count() or 1))


def bind(cores: Collection[int]) -> None:
    """Lets all threads of this process run on these cores, where the system can."""
    with contextlib.suppress(AttributeError, OSError):
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), cores)


def has_torch() -> bool:
    """Whether PyTorch can be imported; does not import it."""
    return importlib.util.find_spec("torch") is not None


def start(
    command: Sequence[str], *, stdin: int, stderr: int, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Starts `command` as the head of a process group of its own, stdout a text pipe. SIGTERM ends it with its parent.

    Args:
        command: the program and its arguments.
        stdin: as of subprocess.
        stderr: likewise.
        variables: to add to `environment()`.
    """
    return subprocess.Popen(
        command,
        env={**environment(), **(variables or {})},
        text=True,
        start_new_session=True,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        preexec_fn=supervise.die_with(os.getpid()),  # noqa: PLW1509 -- threads here start later, or hold no locks
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


class Conversation:
    """A child process that answers each line of JSON with one: `answer` in the child, `ask` in its parent.

    The child ends when its stdin closes, so it cannot outlive its parent. Where MPI is used it must be started before
    MPI is: nothing may fork afterwards.

    Args:
        command: of the child.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._process = start(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._left = b""

    @property
    def pid(self) -> int:
        """Of the child, which leads a process group of the same number."""
        return self._process.pid

    def ask(self, timeout_s: float, **question: Any) -> dict[str, Any] | None:
        """Sends a question and waits for the answer; None from a child that has ended, or does not answer in time."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(question) + "\n")
            stdin.flush()
            answer: dict[str, Any] = json.loads(self._line(timeout_s))
        except (OSError, ValueError):
            return None
        return answer

    def _line(self, timeout_s: float) -> bytes:
        stdout = self._process.stdout
        assert stdout is not None
        end = monotonic() + timeout_s
        while b"\n" not in self._left:
            ready, _, _ = select.select([stdout], [], [], max(0.0, end - monotonic()))
            data = os.read(stdout.fileno(), 65536) if ready else b""
            if not data:
                raise OSError("the child ended or did not answer in time")
            self._left += data
        line, _, self._left = self._left.partition(b"\n")
        return line

    def signal(self, number: int) -> None:
        """Sends a signal to the child and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        """Ends the child. Does nothing twice."""
        stop(self._process)


def answer(reply: Callable[..., dict[str, Any]]) -> None:
    """The child's side of a conversation: answers until the parent is gone. Does not return.

    Args:
        reply: called with the words of a question. An error of it is answered as `{"error": text}`.
    """
    with contextlib.suppress(OSError, AttributeError):
        # Stopped, it would not see its stdin close when its parent is killed.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        for line in sys.stdin:
            try:
                found = reply(**json.loads(line))
            except (RuntimeError, LookupError, TypeError, ValueError, OSError) as error:
                found = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(found), flush=True)
    finally:
        os._exit(0)  # libraries with threads wait at their end for the other side, which may be gone


def output(command: Sequence[str], timeout_s: float, variables: Mapping[str, str] | None = None) -> str:
    """Runs `command` to its end and returns its stdout.

    Args:
        command: the program and its arguments.
        timeout_s: after which it is stopped; time does not count in which this process is stopped, as by Ctrl-Z.
        variables: to add to `environment()`.

    Raises:
        RuntimeError: it failed or took longer than `timeout_s`; the message ends with its last words.
    """
    process = start(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, variables=variables)
    left_s, result = timeout_s, None
    try:
        with signal_forwarding.follow(process.pid) as pauses:
            while result is None:
                try:
                    result = process.communicate(timeout=left_s)
                except subprocess.TimeoutExpired:
                    if not (left_s := pauses.take()):
                        raise RuntimeError(f"no result within {timeout_s:.0f} s: {' '.join(command)}") from None
        out, err = result
    finally:
        stop(process)
    if process.returncode:
        last = "\n".join(err.strip().splitlines()[-5:])
        raise RuntimeError(f"exit code {process.returncode}: {' '.join(command)}\n{last}")
    return out
