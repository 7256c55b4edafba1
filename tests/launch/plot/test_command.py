import json
import math

import pytest
from click.testing import CliRunner

from psgd.kernels.errors import UsageError
from psgd.launch.plot import command, timeline
from psgd.launch.plot import log as plot_log


def write_log(path, waits=False):
    events = [{"event": "start", "workers": 3}]
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
    if waits:
        events.append({"event": "waits", "rows": [[0, 2, 0.1, 0.2], [1, 2, 0.5, 1.5]]})
    events.append({"event": "end", "staleness": {"mean": 0.5, "max": 2, "histogram": {"0": 6, "1": 3, "2": 1}}})
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def test_a_picture_of_two_runs(tmp_path):
    pytest.importorskip("matplotlib")
    logs = [str(write_log(tmp_path / name)) for name in ("a.jsonl", "b.jsonl")]
    target = tmp_path / "out.png"
    done = CliRunner().invoke(command.plot, [*logs, "-o", str(target)], catch_exceptions=False)
    assert done.output == f"wrote {target}\n"
    assert target.read_bytes().startswith(b"\x89PNG")
    assert target.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("options", "panels"),
    [
        ([["waits"]], 1),
        ([["none"]], 0),
        ([["none"], "--timeline"], 1),
        ([["waits"], "--no-timeline"], 0),
        ([["waits", "none"]], 0),
        ([["waits", "none"], "--timeline"], 2),
        ([["waits"], "--window", "0.5:1"], 1),
    ],
)
def test_where_timelines_are_drawn(options, panels, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    drawn = []
    monkeypatch.setattr(timeline, "timeline", lambda _, run, window: drawn.append((run.name, window)))
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)
    names, *flags = options
    logs = [str(write_log(tmp_path / f"{name}.jsonl", waits=name == "waits")) for name in names]
    CliRunner().invoke(command.plot, [*logs, *flags, "-o", str(tmp_path / "out.png")], catch_exceptions=False)
    assert [name for name, _ in drawn] == names[:panels]
    assert all(window == ((0.5, 1.0) if "--window" in flags else None) for _, window in drawn)


@pytest.mark.parametrize("window", ["1", "2:1", "a:b", "-1:2", "1:1", "0:inf", "nan:1"])
def test_a_wrong_window_is_refused(window, tmp_path):
    log = str(write_log(tmp_path / "a.jsonl", waits=True))
    with pytest.raises(UsageError, match="--window"):
        CliRunner().invoke(
            command.plot, [log, f"--window={window}", "-o", str(tmp_path / "a.png")], catch_exceptions=False
        )


@pytest.mark.parametrize("output", ["out.txt", "out", "no/such/out.png"])
def test_a_wrong_output_is_refused_before_reading(output, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="-o"):
        CliRunner().invoke(command.plot, ["missing.jsonl", "-o", output], catch_exceptions=False)


def test_a_diverged_run_is_drawn(tmp_path):
    log = tmp_path / "nan.jsonl"
    log.write_text(
        '{"event": "start"}\n'
        '{"event": "progress", "time": 0.1, "samples": 10, "epoch": 0, "loss": 2.5, "lr": 1e6}\n'
        '{"event": "progress", "time": 0.2, "samples": 20, "epoch": 0, "loss": null, "lr": 1e6}\n'
        '{"event": "eval", "time": 0.3, "samples": 20, "epoch": 1, "accuracy": 0.1, "loss": null}\n'
    )
    run = plot_log.read(log)
    assert [math.isnan(loss) for _, _, loss in run.progress] == [False, True]
    pytest.importorskip("matplotlib")
    command.draw([run], tmp_path / "nan.png")
    assert (tmp_path / "nan.png").stat().st_size > 1000


def test_without_matplotlib_one_line_names_the_extra(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match="pip install matplotlib"):
        CliRunner().invoke(command.plot, [str(write_log(tmp_path / "a.jsonl"))], catch_exceptions=False)


@pytest.fixture
def figures(monkeypatch):
    pytest.importorskip("matplotlib")
    kept = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: kept.append(figure))
    return kept


def test_a_picture_has_a_title_and_one_legend(figures, tmp_path):
    logs = []
    for name, strategy in (("a/run", "sync"), ("b/run", "async"), ("_other", "async")):
        path = tmp_path / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        write_log(path)
        start = {"event": "start", "workers": 3, "dataset": "digits", "model": "mlp", "strategy": strategy}
        path.write_text(json.dumps(start) + "\n" + path.read_text().partition("\n")[2])
        logs.append(str(path))
    for chosen in (logs, logs[1:], logs[:1]):
        CliRunner().invoke(command.plot, [*chosen, "-o", str(tmp_path / "a.png")], catch_exceptions=False)
    titles = [figure.get_suptitle() for figure in figures]
    assert titles == ["digits, mlp", "digits, mlp, async", "digits, mlp, sync, 3 workers"]
    for figure, count in zip(figures, (3, 2, 1), strict=True):
        (legend,) = figure.legends
        texts = [text.get_text() for text in legend.get_texts()]
        assert len(set(texts)) == count and all(axis.get_legend() is None for axis in figure.axes)
    assert texts == ["run"]
    labels = [line.get_label() for line in figures[0].axes[0].get_lines()]
    assert [label[-11:] for label in labels] == ["a/run.jsonl", "b/run.jsonl", " _other"]


def test_many_timelines_stay_drawable(figures, tmp_path, monkeypatch):
    runs = [plot_log.Run(str(n), 17, progress=[(1.0, 1.0, 1.0)]) for n in range(110)]
    monkeypatch.setattr(timeline, "timeline", lambda *_: None)
    command.draw(runs, tmp_path / "a.png", runs)
    width, height = figures[0].get_size_inches()
    assert 150 * max(width, height) < 2**16
