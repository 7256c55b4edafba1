"""`psgd bench train --bandwidth` without hosts: commands, rows and lines."""

import json

import pytest

from psgd.kernels.errors import UsageError
from psgd.launch.bench.peers import processes
from psgd.launch.bench.train import link

TASK = link.LinkTask("digits", "mlp", 16, 3, 8, 0.1, 4, 0.01, 0.9)
RESULT = {"seconds": 2.0, "workers": 4, "workers_applied": [5, 5, 5, 5], "bytes_sent": 40_000, "test_accuracy": 0.5}


def test_a_command_makes_hosts_and_trains():
    words = link.command(TASK, "100mbit", "decentralized", 7)
    assert {"--hosts=4", "--rate=100mbit", "--strategy=decentralized", "--density=0.01", "--seed=7"} <= set(words)
    assert words.index("--") < words.index("train")
    assert "--density=0.01" not in link.command(TASK, "1gbit", "allreduce", 0)


def test_rows_compare_with_the_first_form_and_failures_are_left_out(monkeypatch, capfd):
    def output(command, timeout):
        if "--compress=threshold" in command and "--strategy=allreduce" in command:
            raise RuntimeError("no such\nlink")
        seconds = 6.0 if "--strategy=allreduce" in command else 1.5
        return "words\n" + json.dumps(RESULT | {"seconds_to_target": seconds})

    monkeypatch.setattr(processes, "output", output)
    shown = []
    rows = link.run(TASK, ["1gbit"], 0, shown.append)
    assert shown == rows
    assert [(row["updates"], row["sooner"]) for row in rows] == [("allreduce", 1.0), ("decentralized", 4.0)]
    assert "allreduce, threshold at 1gbit omitted: no such link" in capfd.readouterr().err
    assert link.cells(rows[1]) == ("1gbit", "decentralized", "400.0", "2.0", "0.5000", "1.5", "4.0")
    assert len(link.line(link.cells(rows[1]))) == len(link.line(link.COLUMNS))


def test_the_harness_is_needed(monkeypatch, tmp_path):
    assert link.harness().name == "hosts.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(link.psgd, "__file__", str(tmp_path / "psgd" / "__init__.py"))
    with pytest.raises(UsageError, match="--bandwidth: expected tests/support/harness/hosts"):
        link.harness()
