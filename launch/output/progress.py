"""One progress bar on rank 0 and a terminal; plain lines, one an epoch, in a batch log; nothing elsewhere."""

import os
import sys
import time
from typing import TextIO

from psgd.launch.output import terminal

_REDRAW_S = 0.1
_PATIENCE_S = 1.0  # for an evaluation to join its epoch's line
_BAR = 16


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
        self._total = self._epochs = self._epoch = self._width = self._done = 0
        self._accuracy: float | None = None
        self._began = self._next = 0.0
        self._pending: tuple[int, float] | None = None  # epoch, loss
        self._early: float | None = None

    def show(self) -> None:
        """From now on this rank shows it, in place of one that is lost."""
        if not self._shown:
            self._shown, self._bar = True, terminal.find()

    def note(self, text: str) -> None:
        """Says a line of its own; a bar is drawn anew below it."""
        if self._shown:
            start = "\r" if self._width else ""
            self._write(self._bar or self._lines, f"{start}{text.ljust(self._width)}\n")
            self._width = 0

    def start(self, total_samples: int, epochs: int, done: int = 0) -> None:
        """Begins a run.

        Args:
            total_samples: samples of all epochs together.
            epochs: how many epochs.
            done: samples before this run, which resumes from a checkpoint.
        """
        self._total, self._epochs = max(total_samples, 1), epochs
        self._done, self._epoch = done, done * epochs // self._total
        self._began = self._next = 0.0

    def update(self, samples: int, epoch: int, loss: float, accuracy: float | None = None) -> None:
        """Shows the state of the run.

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
        if not self._began:
            self._began, self._done = time.monotonic(), samples  # training begins; until here it was start-up
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
        seconds = now - self._began
        done_now = samples - self._done
        speed = f"  {done_now / seconds:,.0f} samples/s" if seconds > 0 and done_now > 0 else ""
        rest = self._total - samples
        left = f", {_clock(rest * seconds / done_now)} left" if done_now > 0 and rest > 0 else ""
        accuracy = "" if self._accuracy is None else f"  accuracy {self._accuracy:.4f}"
        text = (
            f"epoch {min(epoch + 1, self._epochs)}/{self._epochs} [{'#' * cells}{'-' * (_BAR - cells)}] "
            f"{done:4.0%}  {_clock(seconds)}{left}  loss {loss:.4f}{accuracy}{speed}"
        )
        try:
            columns = os.get_terminal_size(stream.fileno()).columns
        except (OSError, ValueError):
            columns = 0
        text = text[: columns - 1] if columns > 1 else text
        self._write(stream, f"\r{text.ljust(self._width)}")
        self._width = len(text)

    def _line(self, samples: int, epoch: int, loss: float, accuracy: float | None) -> None:
        """Writes a line when an epoch ends, which waits a little for that epoch's accuracy."""
        now = time.monotonic()
        if self._pending is not None and epoch == self._pending[0] and accuracy is not None:
            self._flush(accuracy)
            return
        if self._pending is not None and (epoch > self._pending[0] or now >= self._next):
            self._flush()
        if epoch > self._epoch:
            self._epoch = epoch
            self._pending = epoch, loss
            self._next = now + _PATIENCE_S
            if (known := accuracy if accuracy is not None else self._early) is not None:
                self._flush(known)
        elif accuracy is not None:
            # Without a barrier a worker may end its epoch, and be evaluated, just before all have.
            if not epoch or samples / self._total * self._epochs - epoch >= 0.5:
                self._early = accuracy
            else:
                self._print(epoch, loss, accuracy)

    def _flush(self, accuracy: float | None = None) -> None:
        if self._pending is not None:
            epoch, loss = self._pending
            self._pending = self._early = None
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


def _clock(seconds: float) -> str:
    """A time as `1:23`, or `4:05:06`."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
