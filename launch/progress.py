"""One progress bar on rank 0 and a terminal; plain lines, one an epoch, in a batch log; nothing elsewhere."""

import os
import sys
import time
from typing import TextIO

from psgd.launch import terminal

_REDRAW_S = 0.1
_BAR = 24


class Progress:
    """Shows how far a run is, on stderr or the launcher's terminal.

    Calls: `start`, `update` as often as wanted (it is cheap, and draws at most ten times a second), `close`.

    Args:
        shown: False makes every call do nothing: for all ranks but 0.
        bar: where to draw a bar; None is found by itself, and plain lines are written where there is no
            terminal.
        lines: where plain lines go; by default stderr.
    """

    def __init__(self, shown: bool = True, bar: TextIO | None = None, lines: TextIO | None = None) -> None:
        self._shown = shown
        self._bar = bar if bar is not None or not shown or lines is not None else terminal.find()
        self._lines = lines if lines is not None else sys.stderr
        self._total = self._epochs = self._epoch = self._width = 0
        self._accuracy: float | None = None
        self._began = self._next = 0.0
        self._pending: tuple[int, int, float] | None = None  # samples, epoch, loss

    def start(self, total_samples: int, epochs: int) -> None:
        """Begins a run.

        Args:
            total_samples: samples of all epochs together.
            epochs: how many epochs.
        """
        self._total, self._epochs = max(total_samples, 1), epochs
        self._began = time.monotonic()
        self._next = 0.0

    def update(self, samples: int, epoch: int, loss: float, accuracy: float | None = None) -> None:
        """Tells the state of the run.

        Args:
            samples: samples done so far, of all epochs.
            epoch: epochs completed.
            loss: newest training loss.
            accuracy: test accuracy in [0, 1] where this call brings a new one, else None.
        """
        if not self._shown:
            return
        if accuracy is not None:
            self._accuracy = accuracy
        if self._bar is None:
            self._line(samples, epoch, loss, accuracy)
            return
        now = time.monotonic()
        if now >= self._next or accuracy is not None:
            self._next = now + _REDRAW_S
            self._draw(self._bar, samples, epoch, loss, now)

    def close(self) -> None:
        """Ends the display; the bar's last state stays. May be called twice."""
        if not self._shown:
            return
        self._flush()
        if self._bar is not None:
            self._write(self._bar, "\n" if self._width else "")
            if self._bar is not sys.stderr:
                self._bar.close()
        self._shown = False

    def _draw(self, stream: TextIO, samples: int, epoch: int, loss: float, now: float) -> None:
        done = min(samples / self._total, 1.0)
        cells = int(done * _BAR)
        seconds = max(now - self._began, 1e-9)
        accuracy = "" if self._accuracy is None else f"  accuracy {self._accuracy:.4f}"
        text = (
            f"epoch {min(epoch + 1, self._epochs)}/{self._epochs} [{'#' * cells}{'-' * (_BAR - cells)}] "
            f"{done:4.0%}  loss {loss:.4f}{accuracy}  {samples / seconds:,.0f} samples/s"
        )
        try:
            columns = os.get_terminal_size(stream.fileno()).columns
        except (OSError, ValueError):
            columns = 0
        text = text[: columns - 1] if columns > 1 else text
        self._write(stream, f"\r{text.ljust(self._width)}")
        self._width = len(text)

    def _line(self, samples: int, epoch: int, loss: float, accuracy: float | None) -> None:
        """Writes a line when an epoch ends. It waits for that epoch's accuracy until training goes on."""
        if self._pending is not None:
            at, done, _ = self._pending
            if accuracy is not None and done == epoch:
                self._flush(accuracy)
                return
            if samples == at:
                return
            self._flush()
        if epoch > self._epoch:
            self._epoch = epoch
            self._pending = samples, epoch, loss
            if accuracy is not None:
                self._flush(accuracy)
        elif accuracy is not None:
            self._print(epoch, loss, accuracy)

    def _flush(self, accuracy: float | None = None) -> None:
        if self._pending is not None:
            _, epoch, loss = self._pending
            self._pending = None
            self._print(epoch, loss, accuracy)

    def _print(self, epoch: int, loss: float, accuracy: float | None) -> None:
        tested = "" if accuracy is None else f"  accuracy {accuracy:.4f}"
        seconds = time.monotonic() - self._began
        self._write(self._lines, f"epoch {epoch}/{self._epochs}  loss {loss:.4f}{tested}  {seconds:.1f} s\n")

    def _write(self, stream: TextIO, text: str) -> None:
        try:
            stream.write(text)
            stream.flush()
        except OSError:
            self._shown = False  # a terminal that closed must not end the run
