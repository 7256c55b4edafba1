"""The pool of ranks, as the pytest process sees it: start, run one test, restart after trouble, stop."""

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import mpi, processes, wire

START_S = 60.0
GRACE_S = 3.0  # for the others once one rank has failed: they are stuck, or about to fail as well
CHECK_S = 10.0
FORWARD_S = 0.2  # until the launcher has passed on what the ranks printed
MOST_TESTS = 500
"""Of one pool where the MPI has few communicators (MPICH: 2048): tests of failures leave some behind, as psgd says."""
QUICK_CHECK_S = 2.0  # after a failure, to see whether the ranks can still be used


@dataclass
class Outcome:
    """What the ranks said of one test: at most one of the two is not empty."""

    failed: str = ""
    skip: str = ""


@dataclass
class Pool:
    """At least `size` ranks, started on first need. Not for use by several threads."""

    size: int
    socks: list[socket.socket] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    launcher: subprocess.Popen[bytes] | None = None
    folder: Path = Path()
    token: str = ""
    ran: int = 0  # tests, since these ranks were started

    def run(self, n: int, timeout_s: float, request: dict[str, Any]) -> Outcome:
        """Runs a test on the first n ranks; whatever may leave a rank stuck ends the pool."""
        try:
            if self.ran >= MOST_TESTS and not mpi.is_open_mpi():
                self.stop()
            self.start(n)
            self.ran += 1
            offset = self.log().stat().st_size
            replies = self.ask(n, {"do": "run", "n": n, **request}, timeout_s)
            outcome = self.judge(n, replies, timeout_s)
            back = len(replies) == n and not any("died" in reply for reply in replies.values())
            if back:
                patience_s = QUICK_CHECK_S if outcome.failed else CHECK_S
                meeting = self.judge(n, self.ask(n, {"do": "check", "n": n}, patience_s), patience_s)
                back = not meeting.failed
                outcome = outcome if outcome.failed or back else meeting
        except BaseException:
            self.kill()
            raise
        if outcome.failed:
            time.sleep(FORWARD_S)
            with self.log().open("rb") as log:
                log.seek(offset)
                if said := log.read()[-4000:].decode(errors="replace").strip():
                    outcome.failed += f"\n--- output of the ranks ---\n{said}"
        if not back:
            self.kill()
        return outcome

    def log(self) -> Path:
        """The file that takes what ranks and launcher print."""
        return self.folder / "log"

    def start(self, n: int) -> None:
        """Starts the ranks unless n are there."""
        if self.launcher is not None and (len(self.socks) < n or self.launcher.poll() is not None):
            self.kill()
        if self.launcher is not None:
            return
        self.size, self.ran = max(self.size, n), 0
        self.folder = Path(tempfile.mkdtemp(prefix="psgd-pool-"))
        self.token = uuid.uuid4().hex
        address = str(self.folder / "socket")
        program = [sys.executable, str(Path(__file__).with_name("rank.py")), address, str(self.folder)]
        with socket.socket(socket.AF_UNIX) as listener, self.log().open("wb") as log:
            listener.bind(address)
            listener.listen(self.size)
            self.launcher = subprocess.Popen(
                [*mpi.command(self.size), *program],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=mpi.environment(self.token),
                start_new_session=True,
            )
            self.meet(listener)

    def meet(self, listener: socket.socket) -> None:
        """Accepts one connection from each rank."""
        assert self.launcher is not None
        met: dict[int, tuple[socket.socket, int]] = {}
        deadline = time.monotonic() + START_S
        listener.settimeout(0.2)
        while len(met) < self.size:
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                if self.launcher.poll() is not None or time.monotonic() > deadline:
                    said = self.log().read_text(errors="replace")[-4000:]
                    raise RuntimeError(f"{len(met)} of {self.size} test ranks started:\n{said}") from None
                continue
            sock.settimeout(None)
            hello = wire.receive(sock)
            if hello is None:
                sock.close()
                continue
            met[hello["rank"]] = (sock, hello["pid"])
        self.socks = [met[rank][0] for rank in range(self.size)]
        self.pids = [met[rank][1] for rank in range(self.size)]

    def ask(self, n: int, request: dict[str, Any], timeout_s: float) -> dict[int, dict[str, Any]]:
        """Sends a request to the first n ranks and collects replies, as many as come in time."""
        for sock in self.socks[:n]:
            with contextlib.suppress(ConnectionError):
                wire.send(sock, request)
        replies: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + timeout_s
        waiting = {self.socks[rank].fileno(): rank for rank in range(n)}
        poll = select.poll()
        for fd in waiting:
            poll.register(fd, select.POLLIN)
        while waiting:
            ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            if not ready:
                break
            for fd, _ in ready:
                rank = waiting.pop(fd)
                poll.unregister(fd)
                reply = wire.receive(self.socks[rank])
                replies[rank] = {"failed": "this rank died\n", "died": True} if reply is None else reply
                if "ok" not in replies[rank]:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        return replies

    def judge(self, n: int, replies: dict[int, dict[str, Any]], timeout_s: float) -> Outcome:
        """Makes one outcome, naming ranks, out of the replies and of those that are missing."""
        texts: dict[str, list[int]] = {}
        for rank, reply in sorted(replies.items()):
            if "failed" in reply:
                texts.setdefault(reply["failed"], []).append(rank)
        missing = [rank for rank in range(n) if rank not in replies]
        skips = {rank: reply["skip"] for rank, reply in replies.items() if "skip" in reply}
        if skips and len(skips) == n:
            return Outcome(skip=skips[0])
        parts = [f"--- {_names(ranks)} of {n} ---\n{text}" for text, ranks in texts.items()]
        if skips and not texts:
            parts.append(f"only {_names(list(skips))} of {n} skipped: {next(iter(skips.values()))}\n")
        if missing:
            why = "after the others failed" if texts or skips else f"after {timeout_s:g} s"
            parts.append(f"--- {_names(missing)} of {n} had not come back {why} ---\n{self.stacks(missing)}")
        return Outcome(failed="\n".join(parts))

    def stacks(self, ranks: list[int]) -> str:
        """Asks ranks where they are; faulthandler answers even from within a blocking call."""
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pids[rank], signal.SIGUSR1)
        time.sleep(0.3)
        texts: dict[str, list[int]] = {}
        for rank in ranks:
            text = (self.folder / f"stack.{rank}").read_text(errors="replace").strip() or "no stack"
            _, _, main = text.rpartition("Current thread ")
            texts.setdefault(main or text, []).append(rank)
        return "\n".join(f"{_names(some)}: {text}" for text, some in texts.items())

    def stop(self) -> None:
        """Lets the ranks finalize and exit; kills what does not."""
        for sock in self.socks:
            with contextlib.suppress(OSError):
                wire.send(sock, {"do": "quit"})
        if self.launcher is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.launcher.wait(timeout=10)
        self.kill()

    def kill(self) -> None:
        """Ends every process of the pool; the next test starts a new one."""
        if self.launcher is None:
            return
        processes.kill(self.token)
        self.launcher.wait(timeout=10)
        self.launcher = None
        for sock in self.socks:
            sock.close()
        self.socks, self.pids = [], []
        shutil.rmtree(self.folder, ignore_errors=True)


def _names(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))}"
