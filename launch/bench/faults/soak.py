"""One run whose workers are killed from outside, at times that nobody knows before, and what must hold of it."""

import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psgd.launch import spawn
from psgd.launch.signal_forwarding import descendants
from psgd.runtime.job_end import LOST
from psgd.strategies.catalog import STRATEGIES

EPOCHS, LEAST_ACCURACY, LIMIT_S = 8, 0.9, 240.0
_RANK = b"OMPI_COMM_WORLD_RANK="


@dataclass
class Outcome:
    """What came of a run.

    Attributes:
        strategy: of the run.
        killed: ranks that were killed.
        detected_s: from each kill until the log told of it.
        seconds: of the run.
        wrong: what did not hold; empty if all did.
    """

    strategy: str
    killed: list[int] = field(default_factory=list)
    detected_s: list[float] = field(default_factory=list)
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


def strategies() -> list[str]:
    """Those whose runs go on without dead workers."""
    return [name for name, each in STRATEGIES.items() if each.survives]


def run(strategy: str, workers: int, rng: random.Random) -> Outcome:
    """Trains on the digits, kills one to all but one of the workers on the way, and checks the end. Blocks.

    Without servers rank 0 is never killed: it writes the log and the result.
    """
    kills = rng.randint(1, workers - 1)
    servers = int(STRATEGIES[strategy].servers)
    with tempfile.TemporaryDirectory(prefix="psgd-faults-") as folder:
        log = Path(folder) / "log"
        words = ["--strategy", strategy, "--workers", str(workers), "--epochs", str(EPOCHS), "--eval-every", "0"]
        words += ["--inject", "compute:0.01", "--log", str(log), "--json"]
        with (
            open(Path(folder) / "out", "w+b") as out,
            open(Path(folder) / "err", "w+b") as err,
            subprocess.Popen(spawn.again(["psgd", "train", *words]), stdout=out, stderr=err) as process,
        ):
            try:
                outcome = Outcome(strategy)
                victims = rng.sample(range(1, workers + servers), kills)
                for victim in victims:
                    _strike(process, log, victim, rng.uniform(0.05, 0.5), outcome)
                process.wait(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                outcome.wrong.append(f"not done after {LIMIT_S:g} s")
                for pid in [*descendants(process.pid), process.pid]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                return outcome
            out.seek(0)
            err.seek(0)
            _check(outcome, process.returncode, out.read().decode(), err.read().decode())
        return outcome


def _strike(process: "subprocess.Popen[bytes]", log: Path, rank: int, after_s: float, outcome: Outcome) -> None:
    """Kills a rank so long after training began, or after the kill before, and waits until the log tells of it."""
    if not _wait(process, lambda: "progress" in _events(log)):
        return
    time.sleep(after_s)
    pid = next((pid for pid in descendants(process.pid) if _rank_of(pid) == rank), None)
    told = _events(log).count("lost")
    if pid is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        began = time.perf_counter()
        outcome.killed.append(rank)
        if _wait(process, lambda: _events(log).count("lost") > told):
            outcome.detected_s.append(time.perf_counter() - began)


def _wait(process: "subprocess.Popen[bytes]", happened: Any) -> bool:
    """Waits until it has happened; False where the run ended before."""
    limit = time.monotonic() + LIMIT_S
    while not happened():
        if process.poll() is not None:
            return bool(happened())
        if time.monotonic() > limit:
            raise subprocess.TimeoutExpired(process.args, LIMIT_S)
        time.sleep(5e-3)
    return True


def _events(log: Path) -> list[str]:
    """The kinds of the events so far."""
    try:
        lines = log.read_text().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):  # half a line
            found.append(json.loads(line)["event"])
    return found


def _rank_of(pid: int) -> int | None:
    """Which rank a process is, that has loaded MPI; None where it is none."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        name = Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return None
    ranks = [int(each.removeprefix(_RANK)) for each in variables if each.startswith(_RANK)]
    return ranks[0] if ranks and ("python" in name or "psgd" in name) else None


def _check(outcome: Outcome, code: int, out: str, err: str) -> None:
    """What must hold: the run ended by itself, with each sample applied once, and knows who died."""
    wrong = outcome.wrong
    if code != (LOST if outcome.killed else 0):
        wrong.append(f"exit code {code}: {err.strip()[-300:]}")
        return
    result = json.loads(out.splitlines()[-1])
    outcome.seconds = result["seconds"]
    if result["samples"] != EPOCHS * result["train_samples"]:
        wrong.append(f"{result['samples']} samples applied, expected {EPOCHS * result['train_samples']}")
    if sorted(result["lost_ranks"]) != sorted(outcome.killed):
        wrong.append(f"lost ranks {result['lost_ranks']}, killed {outcome.killed}")
    if not result["test_accuracy"] >= LEAST_ACCURACY:
        wrong.append(f"accuracy {result['test_accuracy']}, expected {LEAST_ACCURACY} or more")
