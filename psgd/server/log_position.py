"""What the log says of each worker, counted along with it: where a run stands when a checkpoint is made."""

from collections.abc import Mapping

from psgd.runtime.jsonable import JSON, whole, wholes
from psgd.server.log import CheckpointPoint, LogEntry
from psgd.server.wire import Header


class LogPosition:
    """Counts a server's log.

    Args:
        workers: how many there are.

    Attributes:
        checkpoints: how many there were since this process started.
        checkpoint_version: the version at the newest.
        whole: no worker has died; else the clocks are of no use to a run that resumes.
        savers: workers that have something to save there: those that had pushed and waited. The others were done.
    """

    def __init__(self, workers: int) -> None:
        self.checkpoints = self.checkpoint_version = 0
        self.savers: list[int] = []
        self.whole = True
        self._entries = self._open_contributions = 0
        self._clocks = [0] * workers
        self._positions = [0] * workers
        self._waiting: set[int] = set()

    def note(self, entry: LogEntry, pushes: Mapping[int, Header], version: int) -> None:
        """An entry is about to be executed.

        Args:
            entry: the log's next.
            pushes: by worker, those of the group among them.
            version: before it.
        """
        self._entries += 1
        for member in entry.group:
            push = pushes[member.worker]
            self._clocks[member.worker] = member.push
            self._positions[member.worker] = push.position
            self._open_contributions += push.samples > 0
            self._waiting.add(member.worker)
        if not entry.stays_open:
            self._open_contributions = 0
        if entry.checkpoint:
            self.checkpoints += 1
            self.checkpoint_version = version
            self.savers = sorted(self._waiting)
        self._waiting.difference_update(entry.release)

    def lose(self, worker: int) -> None:
        """That worker has died."""
        self.whole = False
        self._waiting.discard(worker)

    def facts(self) -> dict[str, JSON]:
        """All of it, at a checkpoint; the keys are those of its files."""
        return {
            "actions": self._entries,
            "version": self.checkpoint_version,
            "clocks": list(self._clocks) if self.whole else [],
            "opened": self._open_contributions,
            "positions": list(self._positions) if self.whole else [],
        }

    def restore(self, facts: Mapping[str, JSON]) -> CheckpointPoint:
        """Resumes from what `facts` gave; another number of workers begins to push anew, behind the same log."""
        self._entries, self._open_contributions = whole(facts, "actions"), whole(facts, "opened")
        clocks, positions = wholes(facts, "clocks"), wholes(facts, "positions")
        if len(clocks) == len(positions) == len(self._clocks):
            self._clocks, self._positions = clocks, positions
        return CheckpointPoint(self._entries, whole(facts, "version"), self._clocks, self._open_contributions)
