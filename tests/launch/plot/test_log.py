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


def progress(seconds, samples, loss=1.0):
    return {"event": "progress", "time": seconds, "samples": samples, "epoch": 0, "loss": loss, "lr": 0.1}


def test_broken_lines_are_passed_over_with_one_warning(tmp_path, capsys):
    file = tmp_path / "a.jsonl"
    lines = [json.dumps(event) for event in [*EVENTS, END]]
    lines[2:2] = [
        '{"event": "progr',
        "[1]",
        '{"event": "progress", "time": NaN, "samples": 1, "loss": 1}',
        "",
        "\x00\x00",
    ]
    file.write_bytes("\n".join(lines).encode("utf-8-sig") + b"\n\xff\xfe\n")
    run = log.read(file)
    assert (run.progress, run.tests, run.ends) == (
        [(0.1, 50.0, 2.0), (0.2, 100.0, 1.0)],
        [(0.3, 100.0, 0.4)],
        [0.75, 0.5, 0.625],
    )
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"psgd: warning: log {file}, line 3: expected a line of psgd train --log, got")
    assert said[0].endswith(" and 4 more: skipped")


def test_a_broken_line_leaves_nothing_of_itself(tmp_path):
    end = {**END, "waited_seconds": [1.0], "computed_seconds": [1.0], "staleness": {"histogram": {"7": 1}}}
    run = log.read(write_log(tmp_path / "a.jsonl", [*EVENTS, END, end, {"event": "start", "workers": 10**9}]))
    assert (run.workers, run.staleness, run.ends) == (3, {0: 6, 1: 3, 2: 1}, [0.75, 0.5, 0.625])


@pytest.mark.parametrize("torn", ["", '{"event": "progress", "ti\n', '{"event": "progress", "ti'])
def test_steps_that_were_redone_count_once(torn, tmp_path):
    """The run was killed at 400 samples, and resumed from its checkpoint at 200; perhaps within a line."""
    before = [{"event": "start", "workers": 2}, *(progress(0.1 * n, 100.0 * n) for n in range(1, 5))]
    before += [{"event": "eval", "time": 0.45, "samples": 400, "accuracy": 0.9}]
    before += [{"event": "waits", "rows": [[0, 1, 0.1, 0.2], [0, 1, 0.2, 0.4]], "stopped": 0.4}]
    after = [{"event": "start", "workers": 3}, progress(0.25, 250.0, 3.0), progress(0.5, 400.0)]
    file = write_log(tmp_path / "a.jsonl", before)
    with file.open("a") as stream:
        stream.write(torn + "".join(json.dumps(event) + "\n" for event in after))
    run = log.read(file)
    assert run.progress == [(0.1, 100.0, 1.0), (0.2, 200.0, 1.0), (0.25, 250.0, 3.0), (0.5, 400.0, 1.0)]
    assert (run.workers, run.tests, run.waits, run.stopped) == (3, [], [(0, 1, 0.1, 0.2)], None)


def test_a_run_that_went_on_after_its_end_has_not_ended(tmp_path):
    run = log.read(write_log(tmp_path / "a.jsonl", [*EVENTS, END, EVENTS[0], progress(0.6, 150.0)]))
    assert len(run.progress) == 3 and (run.ends, run.staleness) == ([], {})
    again = log.read(write_log(tmp_path / "b.jsonl", [*EVENTS, END, EVENTS[0], progress(0.01, 10.0)]))
    assert (again.progress, again.tests, again.waits) == ([(0.01, 10.0, 1.0)], [], [])  # anew, in the same file
    nothing_left = log.read(write_log(tmp_path / "c.jsonl", [*EVENTS, END, EVENTS[0], END]))
    assert len(nothing_left.progress) == 2 and nothing_left.ends


def test_a_log_in_utf_16_is_read_and_what_is_no_plain_file_is_refused(tmp_path):
    path = tmp_path / "run.jsonl"
    text = "".join(json.dumps(event) + "\n" for event in [*EVENTS, END])
    path.write_bytes(text.encode("utf-16"))
    assert log.read(path).workers == 3
    with pytest.raises(DataError, match="expected a plain file"):
        log.read(tmp_path)


def test_numbers_that_are_too_large_to_be_drawn_are_gaps(tmp_path):
    run = log.read(write_log(tmp_path / "run.jsonl", [EVENTS[0], progress(0.1, 50, 1e300), progress(0.2, 100)]))
    first, second = (loss for _, _, loss in run.progress)
    assert first != first and second == 1.0


@pytest.mark.parametrize("wrong", [9.2e18, 7.0, 0.0])
def test_a_damaged_time_makes_no_curve_run_backwards(tmp_path, wrong):
    times = [1.0, 2.0, wrong, 4.0, 5.0]
    lines = [
        {"event": "progress", "time": at, "samples": 10 * (k + 1), "epoch": 0, "loss": 1.0}
        for k, at in enumerate(times)
    ]
    (tmp_path / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = [at for at, *_ in log.read(tmp_path / "run.jsonl").progress]
    assert found == sorted(found) and found[-2:] == [4.0, 5.0] and max(found) == 5.0
