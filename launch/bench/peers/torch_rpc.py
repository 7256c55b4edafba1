"""PyTorch's RPC (TensorPipe), a peer of pushpull: one process holds the vector, another pushes and pulls.

Run as a module it is one of the two processes: `server FOLDER` or `worker FOLDER`. Both meet through a file
in FOLDER and answer questions (`processes.Conversation`).

`RpcPeer` starts the two. It must be made before MPI starts (no fork after). TensorPipe's threads spin while they
wait, on the cores that others are timed on, so the two are stopped (SIGSTOP) while they are not asked. Which of two
forms is faster, each on a core of its own or both on all cores, depends on the machine and the size: it is tried.
"""

import shutil
import signal
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

from psgd.launch.bench.peers import processes
from psgd.launch.bench.stats import median

LR = 0.25
_TRIAL = 20  # calls of each form, at most
_held: dict[str, Any] = {}


class RpcPeer:
    """The two processes, seen from the rank that asks them for timings."""

    def __init__(self) -> None:
        """Starts both processes without waiting for them; `measure` waits for as long as they need."""
        self._folder = tempfile.TemporaryDirectory(prefix="psgd-bench-", ignore_cleanup_errors=True)
        commands = [processes.python(__name__, role, self._folder.name) for role in ("server", "worker")]
        self._processes = [processes.Conversation(command) for command in commands]
        cores = sorted(processes.launcher_cores())
        self._forms = [[[cores[0]], [cores[-1]]], [cores, cores]]  # the cores of server and worker
        self._fastest: dict[int, list[list[int]]] = {}

    def measure(self, nbytes: int, repeats: int) -> list[float] | None:
        """Seconds of each of `repeats` push + pull calls in the fastest form; None once the peer has failed. Blocks."""
        if not self._processes:
            return None
        self._signal(signal.SIGCONT)
        try:
            if nbytes not in self._fastest:
                tried = [median(self._once(form, nbytes, min(_TRIAL, repeats))) for form in self._forms]
                self._fastest[nbytes] = self._forms[tried.index(min(tried))]
            seconds = self._once(self._fastest[nbytes], nbytes, repeats)
        except RuntimeError:
            self.close()
            return None
        self._signal(signal.SIGSTOP)
        return seconds

    def _once(self, form: list[list[int]], nbytes: int, repeats: int) -> list[float]:
        server, worker = self._processes
        self._ask(server, do="bind", cores=form[0])
        self._ask(worker, do="bind", cores=form[1])
        seconds: list[float] = self._ask(worker, do="measure", nbytes=nbytes, repeats=repeats)["seconds"]
        return seconds

    def _ask(self, process: processes.Conversation, **question: Any) -> dict[str, Any]:
        answer = process.ask(processes.TIMEOUT_S, **question)
        if answer is None or "error" in answer:
            raise RuntimeError("PyTorch's RPC peer ended or did not answer in time")
        return answer

    def close(self) -> None:
        """Ends both processes and removes their files. Does nothing twice."""
        self._signal(signal.SIGCONT)
        for process in reversed(self._processes):
            process.close()
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
            process.signal(number)


def _reset(n: int) -> None:
    """On the server: holds a new vector of `n` zeros."""
    import torch

    _held["params"] = torch.zeros(n)


def _push_pull(grads: Any) -> Any:
    """On the server: one step of SGD, answered with the parameters."""
    params = _held["params"]
    params.sub_(grads, alpha=LR)
    return params


def _measure(nbytes: int, repeats: int) -> dict[str, Any]:
    import torch
    from torch.distributed import rpc

    n = nbytes // 4
    grads = torch.arange(n, dtype=torch.float32).remainder_(17).sub_(8).div_(8)
    rpc.rpc_sync("server", _reset, args=(n,))
    shutil.rmtree(_held["folder"], ignore_errors=True)  # both have met, and the parent may be killed
    warm = 3
    seconds = []
    for _ in range(warm + repeats):
        start = perf_counter()
        params = rpc.rpc_sync("server", _push_pull, args=(grads,))
        seconds.append(perf_counter() - start)
    if not torch.equal(params, grads * (-LR * (warm + repeats))):
        raise RuntimeError("PyTorch's RPC returned wrong parameters")
    return {"seconds": seconds[warm:]}


def _bind(cores: list[int]) -> dict[str, Any]:
    processes.bind(cores)
    return {}


def _reply(do: str, **words: Any) -> dict[str, Any]:
    return _measure(**words) if do == "measure" else _bind(**words)


def _main(role: str, folder: str) -> None:
    import torch
    from torch.distributed import rpc

    torch.set_num_threads(1)
    _held["folder"] = folder
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=1, rpc_timeout=processes.TIMEOUT_S, init_method=Path(folder, "meet").as_uri()
    )
    rpc.init_rpc(role, rank=("server", "worker").index(role), world_size=2, rpc_backend_options=options)
    processes.answer(_reply)


if __name__ == "__main__":
    _main(*sys.argv[1:])
