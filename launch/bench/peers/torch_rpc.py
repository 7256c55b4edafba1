"""PyTorch's RPC (TensorPipe), a peer of pushpull: one process holds the vector, another pushes and pulls.

Run as a module it is one of the two processes: `server FOLDER` or `worker FOLDER`. Both meet through a file
in FOLDER and leave when their stdin closes, so they cannot outlive their parent. The worker reads
JSON objects `{"nbytes", "repeats"}`, one a line, and answers each with `{"seconds": [...]}`.

`RpcPeer` starts the two. It must be made before MPI starts (no fork after). TensorPipe's threads spin while they
wait, on the cores that others are timed on, so the two are stopped (SIGSTOP) while they are not asked.
"""

import contextlib
import ctypes
import importlib.util
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic, perf_counter
from types import TracebackType
from typing import Any

from psgd.launch.bench.peers import processes

LR = 0.25
START_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 120.0
_PR_SET_PDEATHSIG = 1
_held: dict[str, Any] = {}


def installed() -> bool:
    """Whether PyTorch can be imported; does not import it."""
    return importlib.util.find_spec("torch") is not None


class RpcPeer:
    """The two processes, seen from the rank that asks them for timings."""

    def __init__(self) -> None:
        """Starts both processes without waiting for them; `measure` waits for as long as they need."""
        self._folder = tempfile.TemporaryDirectory(prefix="psgd-bench-", ignore_cleanup_errors=True)
        self._left = b""
        self._processes: list[subprocess.Popen[str]] = []
        self._timeout_s = START_TIMEOUT_S
        for role in ("server", "worker"):
            command = processes.python(__name__, role, self._folder.name)
            self._processes.append(processes.start(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL))

    def measure(self, nbytes: int, repeats: int) -> list[float] | None:
        """Seconds of each of `repeats` push + pull calls; None once the peer has failed. Blocks."""
        if not self._processes:
            return None
        self._signal(signal.SIGCONT)
        stdin = self._processes[1].stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps({"nbytes": nbytes, "repeats": repeats}) + "\n")
            stdin.flush()
            answer = json.loads(self._line())
        except (OSError, ValueError):
            self.close()
            return None
        self._timeout_s = CALL_TIMEOUT_S
        self._signal(signal.SIGSTOP)
        return [float(value) for value in answer["seconds"]]

    def close(self) -> None:
        """Ends both processes and removes their files. Does nothing twice."""
        self._signal(signal.SIGCONT)
        for process in reversed(self._processes):
            processes.stop(process)
        self._processes.clear()
        self._folder.cleanup()

    def __enter__(self) -> "RpcPeer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _signal(self, number: int) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def _line(self) -> bytes:
        """The worker's next line, or an OSError when it has not come in time."""
        stdout = self._processes[1].stdout
        assert stdout is not None
        end = monotonic() + self._timeout_s
        while b"\n" not in self._left:
            ready, _, _ = select.select([stdout], [], [], max(0.0, end - monotonic()))
            data = os.read(stdout.fileno(), 65536) if ready else b""
            if not data:
                raise OSError("PyTorch's RPC peer ended or did not answer in time")
            self._left += data
        line, _, self._left = self._left.partition(b"\n")
        return line


def _reset(n: int) -> None:
    """On the server: holds a new vector of `n` zeros."""
    import torch

    _held["params"] = torch.zeros(n)


def _push_pull(grads: Any) -> Any:
    """On the server: one step of SGD, answered with the parameters."""
    params = _held["params"]
    params.sub_(grads, alpha=LR)
    return params


def _measure(nbytes: int, repeats: int) -> list[float]:
    import torch
    from torch.distributed import rpc

    n = nbytes // 4
    grads = torch.arange(n, dtype=torch.float32).remainder_(17).sub_(8).div_(8)
    rpc.rpc_sync("server", _reset, args=(n,))
    warm = 3
    seconds = []
    for _ in range(warm + repeats):
        start = perf_counter()
        params = rpc.rpc_sync("server", _push_pull, args=(grads,))
        seconds.append(perf_counter() - start)
    if not torch.equal(params, grads * (-LR * (warm + repeats))):
        raise RuntimeError("PyTorch's RPC returned wrong parameters")
    return seconds[warm:]


def _main(role: str, folder: str) -> None:
    import torch
    from torch.distributed import rpc

    with contextlib.suppress(OSError, AttributeError):
        # Stopped, it would not see its stdin close when its parent is killed.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    torch.set_num_threads(1)
    with contextlib.suppress(AttributeError, OSError):
        # Its fastest form: a core each. A bound rank's child starts with that rank's core only.
        cores = os.cpu_count() or 1
        os.sched_setaffinity(0, [("server", "worker").index(role) % cores])
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=1, rpc_timeout=CALL_TIMEOUT_S, init_method=Path(folder, "meet").as_uri()
    )
    rpc.init_rpc(role, rank=("server", "worker").index(role), world_size=2, rpc_backend_options=options)
    # No rpc.shutdown(): it waits for the other side, which may be gone.
    try:
        for line in sys.stdin:
            order = json.loads(line)
            print(json.dumps({"seconds": _measure(order["nbytes"], order["repeats"])}), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # the parent may have been killed
        os._exit(0)


if __name__ == "__main__":
    _main(*sys.argv[1:])
