"""What this process wants saved: requested by a signal, by the clock, or by the program.

Signals only raise a request. The next step passes it on to the other ranks, and all save at the same point of the run.
Ranks get a signal that is sent to all of them at slightly different moments: one that comes just after a checkpoint
is answered by that one, so that there is exactly one.
"""

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

SAVE, SAVE_AND_STOP = 1, 2
"""What may be wanted; 0 is nothing."""

ANSWERED_S = 1.0
"""A signal that comes so soon after a checkpoint is answered by it."""

REQUEUE = 85
"""Exit code of a run that saved and stopped on request, to be started again."""


class CheckpointRequest:
    """A rank's request for checkpoints.

    Args:
        minutes: between checkpoints; 0 means never.

    Attributes:
        level: what was requested and not answered yet: 0, `SAVE` or `SAVE_AND_STOP`.
        tell: on rank 0, called with a line for each checkpoint that a signal requested, or None.
        stops: a signal has asked for a checkpoint and the end.
        leads: this is rank 0, which warns where signals can do nothing.
        again: the run itself goes on at its checkpoint in the same job, and has said with how many workers.
    """

    def __init__(self, minutes: float = 0.0) -> None:
        self.tell: Callable[[str], None] | None = None
        self.leads = self.stops = self.again = False
        self._owed = False
        self._every_s = 60.0 * minutes
        self.level = self._sent = 0
        self._newest = -math.inf
        self._due = time.monotonic() + self._every_s if minutes else math.inf

    def ask(self, stop: bool = False) -> None:
        """Requests a checkpoint; with `stop`, all ranks stop after it. May be called in a signal handler."""
        self.level = max(self.level, SAVE_AND_STOP if stop else SAVE)

    def signalled(self, stop: bool) -> None:
        """As `ask`, for what all ranks hear at about the same time."""
        self._owed = not stop
        self.stops = self.stops or stop
        if stop or time.monotonic() - self._newest > ANSWERED_S:
            self.ask(stop)

    @property
    def owed(self) -> bool:
        """Whether a signal's checkpoint was made, and has not been announced."""
        return self._owed and self.level == 0

    def announce(self, path: Path | None) -> None:
        """The checkpoint is complete."""
        self._owed = False
        if self.tell is not None and path is not None:
            self.tell(f"saved: {path}")

    def wanted(self) -> int:
        """What is wanted until it is answered: 0, `SAVE` or `SAVE_AND_STOP`."""
        if self.level == 0 and self._due < math.inf and time.monotonic() >= self._due:
            self.level = SAVE
        return self.level

    def unsent(self) -> int:
        """What is wanted and was not returned by this before: the caller passes it on."""
        wanted = self.wanted()
        if wanted <= self._sent:
            return 0
        self._sent = wanted
        return wanted

    def begin(self, again: bool) -> None:
        """The run begins, or does so `again`: what was passed on may be lost with a rank that died, and is repeated."""
        self._sent, self.again = 0, again

    def answered(self, leaving: bool) -> None:
        """There was a checkpoint; with `leaving` all stop now."""
        self._newest = time.monotonic()
        self._due = self._newest + self._every_s if self._every_s else math.inf
        if leaving or self.level < SAVE_AND_STOP:
            self.level = self._sent = 0


def known(name: str) -> signal.Signals | None:
    """The signal of that name, with or without SIG, that can ask for a checkpoint and the end; None if it is none."""
    found = getattr(signal, name.upper() if name.upper().startswith("SIG") else f"SIG{name.upper()}", None)
    taken = (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT, signal.SIGUSR1)
    return found if isinstance(found, signal.Signals) and found not in taken else None


def heard(stop: str) -> list[signal.Signals]:
    """The signals that `listen` hears, those apart that were ignored when the process started: they stay so."""
    return [each for each in (signal.SIGUSR1, known(stop)) if each and signal.getsignal(each) != signal.SIG_IGN]


def asked_by(stop: str) -> str:
    """The signals that ask for a checkpoint, as text."""
    return " or ".join(each.name for each in (signal.SIGUSR1, known(stop)) if each)


def ignored(stop: str) -> str | None:
    """Says which of the signals that save are ignored, as under nohup; None where all are heard."""
    names = [each.name for each in (signal.SIGUSR1, known(stop)) if each and each not in heard(stop)]
    return f"{' and '.join(names)} saves nothing: it was ignored when this command started" if names else None


def listen(request: CheckpointRequest, stop: str, saves: bool = True) -> None:
    """From now on SIGUSR1 asks for a checkpoint, and the signal named `stop` for one and the end. For the command.

    Until the process ends: a signal that comes as a run is leaving must not kill it. One that is ignored stays so.
    Where the run does not save
    (`saves`), rank 0 says so once.
    """
    chosen, said = known(stop), False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal said
        if saves:
            request.signalled(number == chosen)
        elif request.leads and not said:
            said, name = True, signal.Signals(number).name
            # Python's own streams may be in use at this very moment.
            os.write(2, f"psgd: warning: {name}: nothing is saved without --checkpoint-dir\n".encode())

    if threading.current_thread() is threading.main_thread():
        for each in heard(stop):
            signal.signal(each, on_signal)
