"""`psgd bench faults`: runs take turns, and what was wrong with one is the command's exit code."""

import json

import pytest
from click.testing import CliRunner

from psgd.kernels.errors import UsageError
from psgd.launch.bench.faults import soak
from psgd.launch.bench.faults.command import faults
from psgd.runtime.ulfm import switch


def run(monkeypatch, outcomes, *words, ulfm=True):
    asked = []

    def one(strategy, workers, rng, kind, epochs):
        asked.append((strategy, workers, kind, epochs))
        return outcomes.pop(0)

    monkeypatch.setattr(switch, "built_in", lambda: ulfm)
    monkeypatch.setattr(soak, "run", one)
    done = CliRunner().invoke(faults, words, standalone_mode=False)
    return done, asked


def outcome(**values):
    return soak.Outcome(
        **({"strategy": "sync", "killed": [1, 2], "detected_s": {1: 0.5, 2: 0.1}, "slower": 1.1} | values)
    )


def test_it_sums_up(monkeypatch):
    done, _ = run(monkeypatch, [outcome()], "--minutes", "0", "--json")
    assert done.return_value == 0
    found = json.loads(done.output)
    row = found.pop("by_strategy")
    assert found == {
        **{"runs": 1, "kills": 2, "wrong": 0, "acknowledged": None, "lost": None, "paused_s": None},
        "detected_s": {"median": pytest.approx(0.3), "max": 0.5},
        "slower": {"median": 1.1, "max": 1.1},
    }
    assert row == {"sync, workers": found}
    done, _ = run(monkeypatch, [outcome(acknowledged=7, lost=0)], "--minutes", "0")
    assert "0 of 7 acknowledged pushes lost" in done.output


def test_what_is_wrong_is_said_and_fails(monkeypatch):
    done, _ = run(monkeypatch, [outcome(wrong=["nothing holds"])], "--minutes", "0")
    assert done.return_value == 1
    assert "sync, workers: ranks [1, 2] killed: nothing holds" in done.output and "1 wrong" in done.output


def test_too_slow_is_wrong_too(monkeypatch):
    done, _ = run(monkeypatch, [outcome(slower=1.25)], "--minutes", "0")
    assert done.return_value == 1 and "sync, workers: more than 1.2 times as long" in done.output


def test_kinds_and_strategies_take_turns_until_enough_are_killed(monkeypatch):
    words = ["--minutes", "9", "--kills", "5", "--kinds", "workers,spares", "--strategies", "sync,allreduce"]
    done, asked = run(monkeypatch, [outcome() for _ in range(9)], *words, "--epochs", "4", "--workers", "5")
    assert done.return_value == 0
    assert asked == [("sync", 5, "workers", 4), ("allreduce", 5, "workers", 4), ("sync", 5, "spares", 4)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kinds", "nodes"], "--kinds: expected some of workers, servers, spares, got 'nodes'"),
        (["--strategies", "best"], "--strategies: expected some of sync, "),
        (["--kinds", "servers", "--strategies", "allreduce"], "with servers, got 'allreduce'"),
    ],
)
def test_wrong_words_are_refused(monkeypatch, words, said):
    done, _ = run(monkeypatch, [], *words)
    assert isinstance(done.exception, UsageError) and said in str(done.exception)


def test_without_ulfm_it_is_refused(monkeypatch):
    done, _ = run(monkeypatch, [], ulfm=False)
    assert isinstance(done.exception, UsageError) and "expected an MPI with ULFM" in str(done.exception)
