import json

import pytest

from psgd.kernels.errors import DataError
from psgd.launch.plot import log

EVENTS = [
    {"event": "start", "workers": 3},
    {"event": "progress", "time": 0.1, "samples": 50, "epoch": 0, "loss": 2.0, "lr": 0.1},
    {"event": "progress", "time": 0.2, "samples": 100, "epoch": 0, "loss": 1.0, "lr": 0.1},
    {"event": "waits", "rows": [[0, 1, 0.05, 0.1]]},
    {"event": "eval", "time": 0.3, "samples": 100, "epoch": 1, "accuracy": 0.4, "loss": 1.0},
    {"event": "waits", "rows": [[2, 1, 0.15, 0.4]]},
    {"event": "waits", "stopped": 0.5},
]
END = {
    "event": "end",
    "staleness": {"mean": 0.5, "max": 2, "histogram": {"0": 6, "1": 3, "2": 1}},
    "waited_seconds": [0.25, 0.0, 0.5],
    "computed_seconds": [0.5, 0.5, 0.125],
}


def write_log(path, events):
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def test_read(tmp_path):
    run = log.read(write_log(tmp_path / "a.jsonl", [*EVENTS, END]))
    assert (run.name, run.workers) == ("a", 3)
    assert run.progress == [(0.1, 50.0, 2.0), (0.2, 100.0, 1.0)]
    assert run.tests == [(0.3, 100.0, 0.4)]
    assert run.staleness == {0: 6, 1: 3, 2: 1}
    assert run.waits == [(0, 1, 0.05, 0.1), (2, 1, 0.15, 0.4)]
    assert (run.stopped, run.ends, run.seconds) == (0.5, [0.75, 0.5, 0.625], 0.75)


def test_a_log_that_is_being_written_is_read(tmp_path):
    file = write_log(tmp_path / "a.jsonl", EVENTS)
    with file.open("a") as stream:
        stream.write('{"event": "progress", "ti')
    run = log.read(file)
    assert len(run.progress) == 2 and run.ends == [] and run.seconds == 0.4


def test_a_log_of_an_older_version_is_read(tmp_path):
    run = log.read(write_log(tmp_path / "a.jsonl", [{"event": "start"}, EVENTS[1], {"event": "end"}]))
    assert (run.workers, run.waits, run.ends, run.staleness) == (1, [], [], {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no progress"),
        ('{"event": "start"}\n', "no progress"),
        ('nonsense\n{"event": "start"}\n', "line 1"),
        ('{"event": "start"}\n[1]\n{"event": "start"}\n', "line 2"),
        ('{"event": "progress", "time": 1}\n{"event": "start"}\n', "line 1"),
        ('{"event": "waits", "rows": [[0, 1, NaN, 2]]}\n{"event": "start"}\n', "line 1"),
        ('{"event": "waits", "rows": [[0, 1, 0, Infinity]]}\n{"event": "start"}\n', "line 1"),
        ('{"event": "waits", "rows": [[0, 1, 3, 2]]}\n{"event": "start"}\n', "line 1"),
        ('{"event": "waits", "rows": [[-3, 1, 1, 2]]}\n{"event": "start"}\n', "line 1"),
        ('{"event": "waits", "stopped": "x"}\n{"event": "start"}\n', "line 1"),
        ('{"event": "end", "waited_seconds": [1], "computed_seconds": [1]}\n{"event": "start"}\n', "line 1"),
    ],
)
def test_what_is_no_log_is_refused(text, said, tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text(text)
    with pytest.raises(DataError, match=said):
        log.read(file)
