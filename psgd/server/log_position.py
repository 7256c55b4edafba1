"""What the log says of each worker, counted along with it: where a run stands when a checkpoint is made."""

from collections.abc import Mapping

from psgd.runtime.jsonable import JSON
from psgd.server.log import CheckpointPoint, LogEntry
from psgd.server.wire import Header


class LogPosition:
    """Counts a server's log.

    Args:
        workers: how many there are.

    Attributes:
        cuts: how many there were since this process started.
        newest: the version at the newest.
        savers: workers that have something to save there: those that had pushed and waited. The others were done.
    """

    def __init__(self, workers: int) -> None:
        self.cuts = self.newest = 0
        self.savers: list[int] = []
        self._actions = self._opened = 0
        self._clocks = [0] * workers
        self._positions = [0] * workers
        self._waiting: set[int] = set()

    def note(self, action: LogEntry, pushes: Mapping[int, Header], version: int) -> None:
        """An action is about to be executed.

        Args:
            action: the log's next.
            pushes: by worker, those of the group among them.
            version: before it.
        """
        self._actions += 1
        for member in action.group:
            push = pushes[member.worker]
            self._clocks[member.worker] = member.push
            self._positions[member.worker] = push.position
            self._opened += push.samples > 0
            self._waiting.add(member.worker)
        if not action.opens:
            self._opened = 0
        if action.save:
            self.cuts += 1
            self.newest = version
            self.savers = sorted(self._waiting)
        self._waiting.difference_update(action.release)

    def facts(self) -> dict[str, JSON]:
        """All of it, at a cut."""
        return {
            "actions": self._actions,
            "version": self.newest,
            "clocks": list(self._clocks),
            "opened": self._opened,
            "positions": list(self._positions),
        }

    def restore(self, facts: Mapping[str, JSON]) -> CheckpointPoint:
        """Goes on from what `facts` gave, with the same number of workers."""
        self._actions, self._opened = facts["actions"], facts["opened"]
        self._clocks, self._positions = list(facts["clocks"]), list(facts["positions"])
        return CheckpointPoint(self._actions, facts["version"], self._clocks, self._opened)
