"""One rank of the pool: waits for the name of a test, runs it, says how it went.

Run as `python rank.py SOCKET FOLDER` by mpiexec; FOLDER takes the stack dumps that SIGUSR1 asks for.
"""

import ast
import faulthandler
import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
import types
import warnings
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).parents[1])

import pytest  # noqa: E402
from mpi4py import MPI  # noqa: E402

from harness import wire  # noqa: E402

_modules: dict[str, tuple[tuple[int, int], types.ModuleType]] = {}
_comms: dict[int, MPI.Intracomm] = {}


def load(path: str) -> types.ModuleType:
    """Imports a test file by path, again if it changed, with pytest's assertion rewriting if that works."""
    stat = os.stat(path)
    stamp = (stat.st_mtime_ns, stat.st_size)
    if path in _modules and _modules[path][0] == stamp:
        return _modules[path][1]
    name = f"ranks_of_{Path(path).stem}_{len(_modules)}"
    module = sys.modules[name] = types.ModuleType(name)
    module.__file__ = path
    source = Path(path).read_bytes()
    tree = ast.parse(source, path)
    try:
        from _pytest.assertion.rewrite import rewrite_asserts

        rewrite_asserts(tree, source, path)
    except Exception:  # private to pytest: plain asserts will do
        tree = ast.parse(source, path)
    exec(compile(tree, path, "exec", dont_inherit=True), module.__dict__)
    _modules[path] = (stamp, module)
    return module


def first(n: int) -> MPI.Intracomm:
    """The communicator of the first n ranks, made once: MPICH has 2047 of them."""
    if n not in _comms:
        group = MPI.COMM_WORLD.Get_group().Incl(range(n))
        _comms[n] = MPI.COMM_WORLD.Create_group(group, tag=n)
        _comms[n].Set_errhandler(MPI.ERRORS_RETURN)
    return _comms[n]


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Runs the test body; the reply has one of the keys ok, skip, failed."""
    kwargs = {key: Path(value["path"]) if key == "tmp_path" else value for key, value in request["kwargs"].items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # As in pyproject.toml: of what memory held before.
            warnings.filterwarnings("ignore", "invalid value encountered in matmul", RuntimeWarning)
            owner: Any = load(request["file"])
            if request["cls"]:
                owner = getattr(owner, request["cls"])()
            getattr(owner, request["function"])(comm=first(request["n"]), **kwargs)
    except pytest.skip.Exception as reason:
        return {"skip": str(reason)}
    except BaseException as error:
        trace = error.__traceback__
        while trace and trace.tb_next and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        return {"failed": "".join(traceback.format_exception(type(error), error, trace))}
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return {"ok": True}


def check(n: int) -> dict[str, Any]:
    """After a test: all ranks meet, and no message is left for the next test to trip over."""
    comm, status = first(n), MPI.Status()
    meeting = comm.Ibarrier()
    while not meeting.Test():
        time.sleep(0.0005)
    if comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status):
        return {"failed": f"left a message from rank {status.source} with tag {status.tag} unreceived\n"}
    return {"ok": True}


def leave_with(sock: socket.socket, folder: str) -> None:
    """Exits as soon as the pytest process is gone, wherever the main thread may be stuck."""
    watch = select.poll()
    watch.register(sock, select.POLLRDHUP)
    watch.poll()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def main(address: str, folder: str) -> None:
    """Serves the pytest process until it says quit."""
    rank = MPI.COMM_WORLD.Get_rank()
    dump = (Path(folder) / f"stack.{rank}").open("w")
    faulthandler.register(signal.SIGUSR1, file=dump, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which then closes the socket
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(address)
    threading.Thread(target=leave_with, args=(sock, folder), daemon=True).start()
    wire.send(sock, {"rank": rank, "pid": os.getpid()})
    while (request := wire.receive(sock)) is not None:
        if request["do"] == "quit":
            return
        wire.send(sock, run(request) if request["do"] == "run" else check(request["n"]))
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
