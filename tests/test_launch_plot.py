import json
import math

import pytest
from click.testing import CliRunner

from psgd.kernels.errors import DataError, UsageError
from psgd.launch import plot


def write_log(path, ended=True):
    events = [{"event": "start", "config": {"lr": 0.1}}]
    for step in range(1, 21):
        events.append(
            {
                "event": "progress",
                "time": step / 10,
                "samples": step * 50,
                "epoch": step // 10,
                "loss": 2 / step,
                "lr": 0.1,
            }
        )
    for epoch in (1, 2):
        events.append(
            {
                "event": "eval",
                "time": float(epoch),
                "samples": 500 * epoch,
                "epoch": epoch,
                "accuracy": 0.4 * epoch,
                "loss": 1.0,
            }
        )
    if ended:
        events.append({"event": "end", "staleness": {"mean": 0.5, "max": 2, "histogram": {"0": 6, "1": 3, "2": 1}}})
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def test_read(tmp_path):
    run = plot.read(write_log(tmp_path / "a.jsonl"))
    assert run.name == "a"
    assert len(run.progress) == 20
    assert run.progress[1] == (0.2, 100.0, 1.0)
    assert run.tests == [(1.0, 500.0, 0.4), (2.0, 1000.0, 0.8)]
    assert run.staleness == {0: 6, 1: 3, 2: 1}


def test_a_log_that_is_being_written_is_read(tmp_path):
    file = write_log(tmp_path / "a.jsonl", ended=False)
    whole = len(plot.read(file).progress)
    with file.open("a") as stream:
        stream.write('{"event": "progress", "ti')
    assert len(plot.read(file).progress) == whole


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no progress"),
        ('{"event": "start"}\n', "no progress"),
        ('nonsense\n{"event": "start"}\n', "line 1"),
        ('{"event": "start"}\n[1]\n{"event": "start"}\n', "line 2"),
        ('{"event": "progress", "time": 1}\n{"event": "start"}\n', "line 1"),
    ],
)
def test_what_is_no_log_is_refused(text, said, tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text(text)
    with pytest.raises(DataError, match=said):
        plot.read(file)


def test_a_picture_of_two_runs(tmp_path):
    pytest.importorskip("matplotlib")
    logs = [str(write_log(tmp_path / name)) for name in ("a.jsonl", "b.jsonl")]
    target = tmp_path / "out.png"
    done = CliRunner().invoke(plot.plot, [*logs, "-o", str(target)], catch_exceptions=False)
    assert done.output == f"wrote {target}\n"
    assert target.read_bytes().startswith(b"\x89PNG")
    assert target.stat().st_size > 10_000


@pytest.mark.parametrize("output", ["out.txt", "out", "no/such/out.png"])
def test_a_wrong_output_is_refused_before_reading(output, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="-o"):
        CliRunner().invoke(plot.plot, ["missing.jsonl", "-o", output], catch_exceptions=False)


def test_a_diverged_run_is_drawn(tmp_path):
    log = tmp_path / "nan.jsonl"
    log.write_text(
        '{"event": "start"}\n'
        '{"event": "progress", "time": 0.1, "samples": 10, "epoch": 0, "loss": 2.5, "lr": 1e6}\n'
        '{"event": "progress", "time": 0.2, "samples": 20, "epoch": 0, "loss": null, "lr": 1e6}\n'
        '{"event": "eval", "time": 0.3, "samples": 20, "epoch": 1, "accuracy": 0.1, "loss": null}\n'
    )
    run = plot.read(log)
    assert [math.isnan(loss) for _, _, loss in run.progress] == [False, True]
    pytest.importorskip("matplotlib")
    plot.draw([run], tmp_path / "nan.png")
    assert (tmp_path / "nan.png").stat().st_size > 1000


def test_without_matplotlib_one_line_names_the_extra(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match="pip install matplotlib"):
        CliRunner().invoke(plot.plot, [str(write_log(tmp_path / "a.jsonl"))], catch_exceptions=False)
