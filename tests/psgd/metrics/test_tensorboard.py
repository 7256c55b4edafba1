"""Event files, read back by TensorBoard's own reader."""

import json
import math
import sys
from contextlib import closing
from pathlib import Path

import pytest

from psgd import training
from psgd.config import TrainConfig
from psgd.kernels.errors import UsageError
from psgd.metrics import tensorboard
from psgd.metrics.run_metrics import RunMetrics
from psgd.metrics.tensorboard import TensorBoard
from psgd.runtime import new_files


def scalars(folder):
    """(step, value) pairs by tag, as TensorBoard sees them."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {tag: [(each.step, each.value) for each in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


@pytest.mark.ranks(1, 3)
def test_a_runs_scalars_are_what_its_log_says(comm, tmp_path):
    pytest.importorskip("tensorboard")
    config = TrainConfig(epochs=3, strategy="async", tensorboard=tmp_path / "tb", log=tmp_path / "log.jsonl")
    result = training.run(config, comm)
    if comm.rank != 0:
        return
    assert len(list((tmp_path / "tb").iterdir())) == 1
    found = scalars(tmp_path / "tb")
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    tested = [(line["samples"], pytest.approx(line["accuracy"])) for line in lines if line["event"] == "eval"]
    assert found["accuracy/test"] == tested
    assert found["loss/train"][-1] == (result["samples"], pytest.approx(result["train_loss"]))
    assert found["loss/test"][-1][1] == pytest.approx(result["test_loss"])
    assert [value for _, value in found["learning_rate"]] == pytest.approx([0.1] * len(found["learning_rate"]))
    assert found["staleness/largest"][-1][1] == result["staleness"]["max"]
    for worker in range(result["workers"]):
        share = result["waited_seconds"][worker] / result["seconds"]
        assert found[f"waiting_share/worker_{worker}"][-1][1] == pytest.approx(share, abs=0.1)


def test_speeds_are_written_once_a_second(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    now = [0.0]
    monkeypatch.setattr(RunMetrics, "elapsed_s", lambda metrics: now[0])
    with closing(TensorBoard(tmp_path)) as board:
        metrics = RunMetrics(2)
        for tenth in range(31):
            now[0] = tenth / 10
            metrics.applied(0, 5, 1.0 + tenth, staleness=tenth % 2)
            metrics.progress(5 * (1 + tenth), 1 + tenth, 0.1)
            board(metrics, "progress")
    found = scalars(tmp_path)
    assert found["samples_per_second"] == [(55, pytest.approx(50)), (105, pytest.approx(50)), (155, pytest.approx(50))]
    assert [step for step, _ in found["loss/train"]] == [55, 105, 155]
    assert found["staleness/mean"][-1][1] == pytest.approx(0.5)


def test_what_an_interrupted_run_had_written_behind_its_checkpoint_is_dropped(tmp_path):
    pytest.importorskip("tensorboard")
    for name, steps in (("a", (10, 20, 30)), ("b", (20, 40))):
        with closing(TensorBoard(tmp_path)) as board:
            metrics = RunMetrics(1)
            for samples in steps:
                metrics.progress(samples, samples, 0.5)
                metrics.report(samples / 100 + (name == "b"), 1.0)
                board(metrics, "eval")
        (file,) = [file for file in tmp_path.iterdir() if file.name.startswith("events")]
        file.rename(tmp_path / f"{name}.{file.name[len('events.out') :]}")
    found = scalars(tmp_path)["accuracy/test"]
    assert [step for step, _ in found] == [10, 20, 40]
    assert [value for _, value in found] == pytest.approx([0.1, 1.2, 1.4])


def test_a_loss_that_is_no_number_is_written_as_such(tmp_path):
    with closing(TensorBoard(tmp_path)) as board:
        metrics = RunMetrics(1)
        metrics.progress(1, 1, 0.1)
        board(metrics, "epoch")
    assert math.isnan(scalars(tmp_path)["loss/train"][0][1])


def test_a_full_disk_costs_the_files_not_the_run(tmp_path, monkeypatch, capfd):
    pytest.importorskip("tensorboard")
    full = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115 -- closed where the writing fails
    monkeypatch.setattr(tensorboard, "open_bytes", lambda path: full)
    with closing(TensorBoard(tmp_path)) as board:
        metrics = RunMetrics(1)
        for _ in range(2):
            metrics.report(0.5, 1.0)
            board(metrics, "eval")
        assert not board.on
    what = f"TensorBoard's files in {tmp_path}"
    assert capfd.readouterr().err == f"psgd: warning: {what}: No space left on device; it ends here\n"
    assert what in new_files.lost()


def test_a_folder_that_cannot_be_made_costs_the_files(tmp_path, capfd):
    pytest.importorskip("tensorboard")
    (tmp_path / "file").touch()
    with closing(TensorBoard(tmp_path / "file" / "tb")) as board:
        board(RunMetrics(1), "eval")
    assert capfd.readouterr().err.endswith("Not a directory; it ends here\n")


def test_what_cannot_be_written_is_refused_before_the_run(tmp_path, monkeypatch):
    tensorboard.check("--tensorboard", tmp_path / "new")
    tensorboard.check("--tensorboard", tmp_path / "new" / "deep")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "tb"):
        with pytest.raises(UsageError, match=r"--tensorboard .*expected a folder"):
            tensorboard.check("--tensorboard", folder)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UsageError, match="pip install tensorboard"):
        tensorboard.check("--tensorboard", tmp_path)
