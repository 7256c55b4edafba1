"""A test that failed while the whole machine stood still runs once more: its limits of time meant another machine.

A thread ticks; where a tick comes far too late, and this process has not computed meanwhile, nothing has run here.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable

import pytest
from _pytest.outcomes import OutcomeException
from _pytest.runner import runtestprotocol

TICK_S = 0.5
LATE_S = 10.0  # below it is a busy machine, for which tests have room
SECOND = pytest.StashKey[bool]()


class Clock:
    """Ticks, of a thread from `start` to `stop`, and what was late among them. Takes no lock: forks may come any time.

    Args:
        late_s: between two ticks, from which on the machine stood still.
        now: seconds, which go on while it stands still.
        busy: seconds that this process has computed.
    """

    def __init__(
        self,
        late_s: float = LATE_S,
        now: Callable[[], float] = time.monotonic,
        busy: Callable[[], float] = time.process_time,
    ) -> None:
        self.now = now
        self._late_s, self._busy = late_s, busy
        self._last = now(), busy()
        self._late: dict[float, float] = {}  # by the last tick before, the late one
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begins to tick."""
        threading.Thread(target=self._run, name="standstill", daemon=True).start()

    def stop(self) -> None:
        """Ticks no more."""
        self._stopped.set()

    def tick(self) -> None:
        """To be called each `TICK_S`."""
        now, busy = self.now(), self._busy()
        self._late.update(self._gap(now, busy))
        self._last = now, busy

    def stood_s(self, since: float) -> float:
        """For how many seconds the machine has stood still since a time; 0 where no standstill was long enough."""
        now = self.now()
        late = {**self._late, **self._gap(now, self._busy())}  # the thread may not have had its turn yet
        within = [min(end, now) - max(start, since) for start, end in late.items()]
        return sum(seconds for seconds in within if seconds > self._late_s)

    def _gap(self, now: float, busy: float) -> dict[float, float]:
        """From the last tick to now, if that is a standstill."""
        last, was_busy = self._last
        stood = now - last > self._late_s and busy - was_busy < (now - last) / 2  # else a call held the interpreter
        return {last: now} if stood else {}

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the tests' thread
        while not self._stopped.wait(TICK_S):
            self.tick()


class Repeats:
    """A plugin of pytest: runs such tests again, and says so at the end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._repeated: dict[str, float] = {}  # seconds of standstill

    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if SECOND in item.stash:
            return None  # as ever
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        began = self._clock.now()
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        stood_s = self._clock.stood_s(began) if any(report.failed for report in reports) else 0.0
        if stood_s:
            self._repeated[item.nodeid] = stood_s
            item.stash[SECOND] = True
            hook = item.config.hook
            if hasattr(hook, "pytest_timeout_cancel_timer"):
                hook.pytest_timeout_cancel_timer(item=item)
            with contextlib.suppress(Exception, OutcomeException):  # fixtures of all scopes are made anew
                item.session._setupstate.teardown_exact(None)
            hook.pytest_runtest_protocol(item=item, nextitem=nextitem)  # with a timer of its own
        else:
            for report in reports:
                item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._repeated:
            terminalreporter.section("the machine stood still")
        for name, seconds in self._repeated.items():
            terminalreporter.write_line(f"{name} failed while it did, for {seconds:.0f} s, and ran once more")

    def pytest_unconfigure(self) -> None:
        self._clock.stop()
