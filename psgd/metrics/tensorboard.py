"""Event files for TensorBoard, of the rank that leads and counts. The package `tensorboard` is imported on use.

Its own record writer and messages make the bytes; the file is opened and written here, so that a full disk costs the
file and not the run.
"""

import importlib.util
import os
import secrets
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psgd.kernels.errors import UsageError
from psgd.metrics.run_metrics import Event, RunMetrics
from psgd.metrics.snapshot import Snapshots
from psgd.runtime.new_files import SideFile, lose, open_bytes


def check(what: str, folder: Path) -> None:
    """Refuses, before the run, what could not be written.

    Args:
        what: the option, for the message.
        folder: of the event files; it and those above it may be missing.

    Raises:
        UsageError: no package `tensorboard`, or not a folder that can be written.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise UsageError(f"{what} {folder}: needs TensorBoard; pip install tensorboard")
    above = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    if not above.is_dir():
        raise UsageError(f"{what} {folder}: expected a folder, or a new one; {above} is a file")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UsageError(f"{what} {folder}: cannot be written: permission is denied")


class TensorBoard:
    """A run's scalars, by samples: the axis on which runs of different strategies and numbers of workers compare.

    Args:
        folder: of the event files; None writes nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._snapshots = Snapshots()
        self._began = False
        self.open(folder)

    def open(self, folder: Path | None) -> None:
        """From now on writes a new file there."""
        self._what = f"TensorBoard's files in {folder}"
        self._file = SideFile(self._what, None)
        if folder is None:
            return
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._messages, self._summaries = event_pb2, summary_pb2
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{secrets.token_hex(4)}.psgd"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = SideFile(self._what, open_bytes(folder / name))
        except OSError as error:
            lose(self._what, error)
        self._records = RecordWriter(self._file)
        self._put(file_version="brain.Event:2")

    @property
    def on(self) -> bool:
        """Whether there is a file to write."""
        return self._file.open

    def __call__(self, metrics: RunMetrics, event: Event) -> None:
        """Writes what is new at an event of the metrics; progress at most once a second."""
        if not self.on:
            return
        if not self._began:
            self._began = True
            start = self._messages.SessionLog(status=self._messages.SessionLog.START)
            self._put(session_log=start, step=metrics.samples)  # what an interrupted run had written behind it goes
        values: dict[str, float | None] = {}
        if event == "eval":
            values |= {"accuracy/test": metrics.accuracy, "loss/test": metrics.test_loss}
        if (due := self._snapshots.due(metrics)) or event == "epoch":
            values |= {"loss/train": metrics.loss, "learning_rate": metrics.lr}
        if due:
            values |= _speeds(self._snapshots.take(metrics))
        self._put_scalars(values, metrics.samples)

    def finish(self, metrics: RunMetrics) -> None:
        """Writes what is known at the end only: the whole time that each worker has spent in its steps."""
        if self.on:
            values = _speeds(self._snapshots.take(metrics))
            del values["samples_per_second"]  # the end is no time of training
            self._put_scalars({"loss/train": metrics.loss} | values, metrics.samples)

    def _put_scalars(self, values: Mapping[str, float | None], samples: int) -> None:
        value = self._summaries.Summary.Value
        found = [value(tag=tag, simple_value=number) for tag, number in values.items() if number is not None]
        if found:
            self._put(summary=self._summaries.Summary(value=found), step=samples)

    def _put(self, **fields: Any) -> None:
        self._records.write(self._messages.Event(wall_time=time.time(), **fields).SerializeToString())

    def close(self) -> None:
        """Closes the file. May be called twice."""
        self._file.close()


def _speeds(taken: dict[str, Any]) -> dict[str, float | None]:
    """A snapshot's scalars."""
    values = {
        "samples_per_second": taken["samples_per_second"],
        "staleness/mean": taken["staleness"],
        "staleness/largest": taken["largest_staleness"],
    }
    for worker, waited_s in enumerate(taken["waited_s"]):
        values[f"waiting_share/worker_{worker}"] = min(1.0, waited_s / taken["time"]) if taken["time"] > 0 else 0.0
    return values
