"""The order of a run as a file: written while it happens, and enforced when it is to happen again.

JSON lines. The first says what the run was; each other one is an action: the pushes that were applied, whether their
group stayed open, and who was released. A run that follows the same order on the same data ends with the same bits.
"""

import json
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psgd.kernels.errors import ContractError, UsageError
from psgd.order import Action, Member
from psgd.strategies import Strategy
from psgd.wire import Header

FORMAT = "psgd order 1"


class Recorder:
    """A strategy whose decisions are written down.

    Args:
        strategy: the one that decides.
        path: the file, overwritten.
        run: what a run that follows it must have in common, as JSON can say it.

    Raises:
        UsageError: the file cannot be written.
    """

    def __init__(self, strategy: Strategy, path: Path, run: Mapping[str, Any]) -> None:
        self.fixed_order = strategy.fixed_order
        self._strategy = strategy
        try:
            self._file = path.open("w", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"record: {path} cannot be written: {error.strerror}") from None
        self._write({"format": FORMAT, "run": dict(run)})

    def on_push(self, push: Header, now: float) -> tuple[Action, ...]:
        """See `psgd.strategies.Strategy`."""
        return self._kept(self._strategy.on_push(push, now))

    def on_done(self, worker: int, now: float) -> tuple[Action, ...]:
        """See `psgd.strategies.Strategy`."""
        return self._kept(self._strategy.on_done(worker, now))

    def close(self) -> None:
        """Closes the file; it is whole then."""
        self._file.close()

    def _kept(self, actions: tuple[Action, ...]) -> tuple[Action, ...]:
        for action in actions:
            told: dict[str, Any] = {"apply": [list(member) for member in action.group]}
            if action.opens:
                told["opens"] = True
            self._write({**told, "release": list(action.release)})
        return actions

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")


class Replay:
    """A strategy that decides what a file says, as soon as the pushes for it have come.

    Args:
        workers: how many there are.
        actions: what is to happen, in order; empty on servers that only follow.
    """

    fixed_order = False

    def __init__(self, workers: int, actions: list[Action]) -> None:
        self._next = deque(actions)
        self._here: dict[int, int] = {}
        self._live = set(range(workers))

    def on_push(self, push: Header, now: float) -> tuple[Action, ...]:
        """See `psgd.strategies.Strategy`.

        Raises:
            ContractError: this run has a push that the recorded one did not have.
        """
        self._here[push.worker] = push.push
        actions = self._due()
        if not self._next and self._here:
            raise ContractError(f"replay: push {push.push} of worker {push.worker} is not in the file")
        return actions

    def on_done(self, worker: int, now: float) -> tuple[Action, ...]:
        """See `psgd.strategies.Strategy`.

        Raises:
            ContractError: the recorded run had a push that this one does not have.
        """
        self._live.discard(worker)
        actions = self._due()
        for member in self._next[0].group if self._next else ():
            if member.worker not in self._live and member.worker not in self._here:
                raise ContractError(
                    f"replay: the file has push {member.push} of worker {member.worker}, which has ended"
                )
        return actions

    def _due(self) -> tuple[Action, ...]:
        due = []
        while self._next and all(self._here.get(member.worker) == member.push for member in self._next[0].group):
            due.append(self._next.popleft())
            for member in due[-1].group:
                del self._here[member.worker]
        return tuple(due)


def load(path: Path, run: Mapping[str, Any]) -> list[Action]:
    """Reads what a `Recorder` wrote.

    Args:
        path: the file.
        run: what this run is; it must be what the file says.

    Raises:
        UsageError: it cannot be read, is no such file, or is of another run.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"replay: {path} cannot be read: {error}") from None
    number = 1
    try:
        head = json.loads(lines[0])
        if head["format"] != FORMAT:
            raise ValueError(f"expected format {FORMAT!r}, got {head['format']!r}")
        recorded = head["run"]
        actions = []
        for line in lines[1:]:
            number += 1
            told = json.loads(line)
            group = tuple(Member(_whole(w), _whole(p), float(weight)) for w, p, weight in told["apply"])
            release = tuple(_whole(worker) for worker in told["release"])
            actions.append(Action(group, release, opens=told.get("opens") is True))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise UsageError(f"replay: {path}, line {number}: not an order that was recorded: {error}") from None
    for key, value in run.items():
        if recorded.get(key) != value:
            raise UsageError(
                f"replay: {path} is of another run: {key} was {recorded.get(key)!r} there and is {value!r} here"
            )
    return actions


def _whole(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a whole number, got {value!r}")
    return value
