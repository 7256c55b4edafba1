"""One run whose ranks are killed from outside, at times that nobody knows before, and what must hold of it."""

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
from psgd.launch.bench.faults.pace import undisturbed_s
from psgd.launch.bench.faults.pauses import pauses_s
from psgd.launch.signal_forwarding import descendants
from psgd.metrics import push_numbers
from psgd.runtime.job_end import LOST
from psgd.runtime.launcher_env import rank_of
from psgd.strategies.catalog import STRATEGIES

LEAST_ACCURACY, LIMIT_S = 0.9, 240.0
KINDS = ("workers", "servers", "spares")


@dataclass
class Outcome:
    """What came of a run.

    Attributes:
        strategy: of the run.
        kind: who was killed: one of `KINDS`.
        killed: ranks that were killed.
        detected_s: of each of these that the log told of, how long after the kill it did.
        paused_s: of each of these, how long after the kill training made progress again; not with spares.
        seconds: of the run.
        slower: `seconds` by those that it would have taken undisturbed; None where that is not known.
        acknowledged: pushes that servers have answered, of the workers that lived; None where there are no servers.
        lost: of these, how many were not applied.
        wrong: what did not hold; empty if all did.
    """

    strategy: str
    kind: str = "workers"
    killed: list[int] = field(default_factory=list)
    detected_s: dict[int, float] = field(default_factory=dict)
    paused_s: dict[int, float] = field(default_factory=dict)
    seconds: float = 0.0
    slower: float | None = None
    acknowledged: int | None = None
    lost: int | None = None
    wrong: list[str] = field(default_factory=list)


def strategies(kind: str) -> list[str]:
    """Those whose runs go on when such ranks die."""
    return [name for name, each in STRATEGIES.items() if each.survives and (kind != "servers" or each.servers)]


class Hunt:
    """A run's ranks, of which some are killed.

    Args:
        process: the launcher.
        log: that the run writes.
        outcome: notes who was killed, and when the log told of it.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, outcome: Outcome) -> None:
        self._process, self._log, self._outcome = process, log, outcome
        self._struck: dict[int, float] = {}
        self._limit = time.monotonic() + LIMIT_S

    def kill(self, rank: int) -> None:
        """Kills a rank, if it is there."""
        pid = next((pid for pid in descendants(self._process.pid) if rank_of(pid) == rank), None)
        if pid is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self._struck[rank] = time.perf_counter()
                self._outcome.killed.append(rank)

    def sleep(self, seconds: float) -> None:
        """Waits so long, or until the run is over."""
        end = time.monotonic() + seconds
        self._until(lambda: time.monotonic() >= end)

    def begun(self) -> None:
        """Waits until training makes progress."""
        self._until(lambda: any(event["event"] == "progress" for event in events(self._log)))

    def told(self) -> None:
        """Waits until the log has told of all that were killed."""
        self._until(lambda: len(self._outcome.detected_s) == len(self._struck))

    def over(self) -> None:
        """Waits until the run is over."""
        self._until(lambda: False)

    def _until(self, happened: Any) -> None:
        while self._process.poll() is None and not happened():
            if time.monotonic() > self._limit:
                raise subprocess.TimeoutExpired(self._process.args, LIMIT_S)
            time.sleep(5e-3)
            if len(self._outcome.detected_s) < len(self._struck):
                now, found = time.perf_counter(), self._outcome.detected_s
                for event in events(self._log):
                    if event["event"] == "lost" and event["rank"] in self._struck and event["rank"] not in found:
                        found[event["rank"]] = now - self._struck[event["rank"]]


def run(strategy: str, workers: int, rng: random.Random, kind: str = "workers", epochs: int = 8) -> Outcome:
    """Trains on the digits, kills ranks on the way, and checks the end. Blocks.

    Args:
        strategy: of the run.
        workers: how many; one to all but one of them are killed, or with spares as many ranks, of any kind, or one of
            two servers.
        rng: of who is killed, and when: some together, some while the others regroup.
        kind: who is killed.
        epochs: of the run.
    """
    servers = int(STRATEGIES[strategy].servers) * (2 if kind == "servers" else 1)
    outcome = Outcome(strategy, kind)
    with tempfile.TemporaryDirectory(prefix="psgd-faults-") as name:
        folder = Path(name)
        log, kills = folder / "log", 1 if kind == "servers" else rng.randint(1, workers - 1)
        words = ["--strategy", strategy, "--workers", str(workers), "--epochs", str(epochs)]
        words += ["--inject", "compute:0.01", "--log", str(log), "--json"]
        candidates = range(servers, servers + workers)  # without servers rank 0 is one of them
        if kind == "spares":
            candidates = range(servers + workers)
            words += ["--spares", str(kills), "--checkpoint-dir", str(folder / "saved"), "--checkpoint-every", "40"]
        elif kind == "servers":
            candidates = range(servers)
            words += ["--servers", str(servers), "--replicas", "1"]
        with (
            open(folder / "out", "w+b") as out,
            open(folder / "err", "w+b") as err,
            subprocess.Popen(spawn.again(["psgd", "train", *words]), stdout=out, stderr=err) as process,
        ):
            try:
                hunt = Hunt(process, log, outcome)
                hunt.begun()
                for victim in rng.sample(candidates, kills):
                    if outcome.killed and rng.random() < 0.5:
                        hunt.sleep(rng.choice((0.0, 0.05 * rng.random())))  # together, or while they regroup
                    else:
                        hunt.told()
                        hunt.sleep(rng.uniform(0.05, 0.5))
                    hunt.kill(victim)
                hunt.over()
            except subprocess.TimeoutExpired:
                outcome.wrong.append(f"not done after {LIMIT_S:g} s")
                for pid in [*descendants(process.pid), process.pid]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                return outcome
            out.seek(0)
            err.seek(0)
            check(outcome, process.returncode, out.read().decode(), err.read().decode(), epochs)
        if kind != "spares":
            outcome.paused_s = pauses_s(events(log), outcome.detected_s)
        if not outcome.wrong and kind != "spares":
            found = undisturbed_s(events(log), outcome.detected_s)
            outcome.slower = None if found is None else outcome.seconds / found
    return outcome


def events(log: Path) -> list[dict[str, Any]]:
    """A log so far."""
    try:
        lines = log.read_text().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):  # half a line
            found.append(json.loads(line))
    return found


def check(outcome: Outcome, code: int, out: str, err: str, epochs: int) -> None:
    """What must hold: the run ended by itself, with each sample and push applied once, and knows who died."""
    wrong = outcome.wrong
    if code != (LOST if outcome.killed else 0):
        wrong.append(f"exit code {code}: {err.strip()[-300:]}")
        return
    result = json.loads(out.splitlines()[-1])
    outcome.seconds = result["seconds"]
    if result["samples"] != epochs * result["train_samples"]:
        wrong.append(f"{result['samples']} samples applied, expected {epochs * result['train_samples']}")
    if sorted(result["lost_ranks"]) != sorted(outcome.killed):
        wrong.append(f"lost ranks {result['lost_ranks']}, killed {outcome.killed}")
    if not result["test_accuracy"] >= LEAST_ACCURACY:
        wrong.append(f"accuracy {result['test_accuracy']}, expected {LEAST_ACCURACY} or more")
    if STRATEGIES[outcome.strategy].servers:
        _check_pushes(outcome, result["pushes"])


def _check_pushes(outcome: Outcome, pushes: dict[str, Any]) -> None:
    """Each push has a number: servers have applied all that they have acknowledged, each once."""
    outcome.acknowledged = sum(number or 0 for number in pushes["acknowledged"])
    outcome.lost = push_numbers.lost(pushes)
    if outcome.lost:
        outcome.wrong.append(f"{outcome.lost} of {outcome.acknowledged} acknowledged pushes are lost: {pushes}")
    outcome.wrong += push_numbers.repeated(pushes)
