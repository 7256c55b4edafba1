"""`psgd bench faults`: runs take turns, and what was wrong with one is the command's exit code."""

import json

import pytest
from click.testing import CliRunner

from psgd.kernels.errors import UsageError
from psgd.launch.bench.faults import soak
from psgd.launch.bench.faults.command import faults
from psgd.runtime.ulfm import switch


def run(monkeypatch, outcomes, *words, ulfm=True):
    monkeypatch.setattr(switch, "built_in", lambda: ulfm)
    monkeypatch.setattr(soak, "run", lambda strategy, workers, rng: outcomes.pop(0))
    return CliRunner().invoke(faults, words, standalone_mode=False)


def test_it_sums_up(monkeypatch):
    done = run(monkeypatch, [soak.Outcome("sync", [1, 2], [0.5, 0.1])], "--minutes", "0", "--json")
    assert done.return_value == 0
    assert json.loads(done.output) == {
        **{"runs": 1, "kills": 2, "wrong": 0},
        "detected_s": {"median": pytest.approx(0.3), "max": 0.5},
    }


def test_what_is_wrong_is_said_and_fails(monkeypatch):
    done = run(monkeypatch, [soak.Outcome("sync", [1], [], wrong=["nothing holds"])], "--minutes", "0")
    assert done.return_value == 1
    assert "sync: ranks [1] killed: nothing holds" in done.output and "1 wrong" in done.output


def test_without_ulfm_it_is_refused(monkeypatch):
    done = run(monkeypatch, [], ulfm=False)
    assert isinstance(done.exception, UsageError) and "expected an MPI with ULFM" in str(done.exception)
