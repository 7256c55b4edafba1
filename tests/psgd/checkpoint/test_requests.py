"""Signals: exactly one checkpoint each, where all agree on; killed and resumed, a run ends as it would have."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from harness import ROOT

from psgd.checkpoint import requests, vectors
from psgd.checkpoint.folder import folders, open_checkpoint
from psgd.checkpoint.requests import SAVE, SAVE_AND_STOP, CheckpointRequest
from psgd.checkpoint.resume import States
from psgd.launch.signal_forwarding import descendants


def test_a_wish_is_told_once_and_answered_by_one_checkpoint():
    request = CheckpointRequest()
    assert (request.wanted(), request.unsent()) == (0, 0)
    request.signalled(stop=False)
    assert (request.wanted(), request.unsent(), request.unsent(), request.wanted()) == (SAVE, SAVE, 0, SAVE)
    request.answered(leaving=False)
    request.signalled(stop=False)  # the same one, which has come to this rank later
    assert request.wanted() == 0
    assert not request.stops
    request.signalled(stop=True)
    assert request.stops and request.unsent() == SAVE_AND_STOP
    request.answered(leaving=False)  # of a checkpoint that was under way
    assert request.wanted() == SAVE_AND_STOP
    request.answered(leaving=True)
    assert request.wanted() == 0


def test_a_run_that_is_begun_again_has_it_passed_on_once_more():
    request = CheckpointRequest()
    request.ask()
    request.begin(again=False)
    assert not request.again and (request.unsent(), request.unsent()) == (SAVE, 0)
    request.begin(again=True)
    assert request.again and request.unsent() == SAVE


def test_a_signals_checkpoint_is_told_once():
    request, said = CheckpointRequest(), []
    request.tell = said.append
    request.signalled(stop=False)
    assert not request.owed  # not made yet
    request.answered(leaving=False)
    assert request.owed
    request.announce(Path("a"))
    assert not request.owed and said == ["saved: a"]
    request.ask()
    request.answered(leaving=False)
    assert not request.owed  # no signal asked for that one


def test_without_checkpoints_rank_0_warns_once(capfd, monkeypatch):
    handlers = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    request = CheckpointRequest()
    requests.listen(request, "USR2", saves=False)
    handlers[signal.SIGUSR2](signal.SIGUSR2, None)
    request.leads = True
    for number in (signal.SIGUSR2, signal.SIGUSR1):
        handlers[number](number, None)
    assert capfd.readouterr().err == "psgd: warning: SIGUSR2: nothing is saved without --checkpoint-dir\n"
    assert request.wanted() == 0


def test_a_signal_that_is_ignored_stays_so(monkeypatch):
    handlers = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(signal, "getsignal", {signal.SIGUSR1: signal.SIG_IGN, signal.SIGHUP: signal.SIG_DFL}.get)
    requests.listen(CheckpointRequest(), "HUP")
    assert list(handlers) == requests.heard("HUP") == [signal.SIGHUP]
    assert requests.ignored("HUP") == "SIGUSR1 saves nothing: it was ignored when this command started"
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_DFL)
    assert requests.ignored("HUP") is None


def test_minutes(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    request = CheckpointRequest(minutes=0.5)
    now[0] += 29
    assert request.wanted() == 0
    now[0] += 2
    assert request.unsent() == SAVE
    request.answered(leaving=False)
    now[0] += 29
    assert request.wanted() == 0
    now[0] += 2
    assert request.wanted() == SAVE


@pytest.mark.parametrize(
    ("name", "number"),
    [("USR2", signal.SIGUSR2), ("sigterm", signal.SIGTERM), ("USR1", None), ("KILL", None), ("", None)],
)
def test_names(name, number):
    assert requests.known(name) == number


class Run:
    """`psgd train` as a process of its own."""

    def __init__(self, folder, *arguments):
        self.out, self.err = folder / f"out{time.monotonic_ns()}", folder / "err"
        words = [sys.executable, "-m", "psgd.launch", "train", "--json", "--epochs", "20", *map(str, arguments)]
        words += ["--optimizer", "adam", "--lr", "0.003", "--servers", "2", "--checkpoint-dir", str(folder / "c")]
        with self.out.open("w") as out, self.err.open("a") as err:
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            self.process = subprocess.Popen(words, cwd=folder, env=environment, stdout=out, stderr=err)

    def wait(self):
        return self.process.wait(60)

    def until(self, true):
        limit = time.monotonic() + 40
        while not true():
            assert time.monotonic() < limit and self.process.poll() is None, self.err.read_text()
            time.sleep(0.02)

    @property
    def result(self):
        return json.loads(self.out.read_text().splitlines()[-1])


def test_killed_signalled_and_resumed_is_uncut(tmp_path):
    """Cases 34, 35 and 38: two servers, two workers; SIGUSR1, SIGKILL, SIGUSR2, each time resumed."""
    uncut = Run(tmp_path)
    assert uncut.wait() == 0
    slow, checkpoints = ("--inject", "compute:0.01"), tmp_path / "c"
    log = tmp_path / "log"

    run = Run(tmp_path, *slow, "--log", log)
    run.until(lambda: log.exists() and '"epoch": 2' in log.read_text())
    run.process.send_signal(signal.SIGUSR1)
    run.until(lambda: folders(checkpoints))
    time.sleep(0.3)
    first = folders(checkpoints)
    assert len(first) == 1 and run.err.read_text().count(f"\nsaved: {first[0]}\n") == 1
    ranks = [pid for pid in descendants(run.process.pid) if "psgd.launch" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(ranks[-2], signal.SIGKILL)
    assert run.wait() not in (0, 85)
    assert folders(checkpoints) == first

    lines = len(log.read_text().splitlines())
    run = Run(tmp_path, *slow, "--log", log, "--resume")
    run.until(lambda: log.read_text().count('"start"') == 2 and '"epoch": 4' in log.read_text())
    run.process.send_signal(signal.SIGUSR2)
    assert run.wait() == requests.REQUEUE, run.err.read_text()
    assert len(log.read_text().splitlines()) > lines
    newest, oldest = folders(checkpoints)
    assert [oldest] == first and str(newest) in run.out.read_text()
    step = int(newest.name[5:])
    assert f"\nsaved at step {step:,} in {newest} and stopped; continue with --resume\n" in run.err.read_text()
    assert "nothing left to do" not in run.err.read_text()

    run = Run(tmp_path, "--resume", "--log", log)
    assert run.wait() == 0, run.err.read_text()
    assert run.result["checkpoint"] == str(newest)
    for key in ("test_loss", "train_loss", "test_accuracy", "steps", "samples", "workers_applied", "staleness"):
        assert run.result[key] == uncut.result[key], key

    run = Run(tmp_path, "--resume", "--epochs", "1", "--save", tmp_path / "w.npz")
    assert run.wait() == 0, run.err.read_text()
    assert run.result["test_accuracy"] > 0.5 and "nothing left to do: the checkpoint is at epoch" in run.err.read_text()
    with np.load(tmp_path / "w.npz") as kept:
        weights = vectors.weights(list(States(open_checkpoint(newest))))
        assert all(
            np.array_equal(kept[n], v) for n, v in open_checkpoint(newest).manifest.layout.views(weights).items()
        )
        assert len(kept.files) == 4
