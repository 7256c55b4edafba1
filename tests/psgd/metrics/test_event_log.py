import json
from contextlib import closing
from pathlib import Path

from psgd.metrics.event_log import EventLog
from psgd.runtime.jsonable import clean


def test_lines_are_whole_as_they_are_written(tmp_path):
    path = tmp_path / "log.jsonl"
    with closing(EventLog(path)) as journal:
        journal.write("start", lr=0.1, where=Path("x"))
        assert json.loads(path.read_text()) == {"event": "start", "lr": 0.1, "where": "x"}
        journal.write("progress", loss=float("nan"), nested={"worst": float("inf"), "list": [1]})
    last = path.read_text().splitlines()[-1]
    assert json.loads(last) == {"event": "progress", "loss": None, "nested": {"worst": None, "list": [1]}}


def test_a_full_disk_costs_the_log_not_the_run(capfd):
    with closing(EventLog(Path("/dev/full"))) as journal:
        journal.write("start")
        journal.write("progress")
    assert capfd.readouterr().err == "psgd: warning: log /dev/full: No space left on device; it ends here\n"


def test_a_resumed_run_begins_on_a_new_line(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"event": "start"}\n{"event": "progr')
    with closing(EventLog(path, append=True)) as journal:
        journal.write("start")
    assert path.read_text() == '{"event": "start"}\n{"event": "progr\n{"event": "start"}\n'


def test_a_log_that_cannot_be_made_costs_the_log(tmp_path, capfd):
    with closing(EventLog(tmp_path / "none" / "log")) as journal:
        journal.write("start")
    assert capfd.readouterr().err.endswith("No such file or directory; it ends here\n")


def test_no_path_writes_nothing():
    with closing(EventLog(None)) as journal:
        journal.write("start")


def test_clean_keeps_the_rest():
    assert clean({"a": [1, 2.5, None], "b": "x"}) == {"a": [1, 2.5, None], "b": "x"}
