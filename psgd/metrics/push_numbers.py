"""Each push has a number, counted by its worker from 1: which were sent, acknowledged, and applied, and how often."""

from collections.abc import Iterable, Mapping
from typing import Any


class PushNumbers:
    """What one rank knows of them.

    Args:
        workers: number of workers.

    Attributes:
        sent: on a worker, the number of its newest push.
        acknowledged: on a worker, the number of the newest push that all servers have answered.
        applied: on a server, by worker how many pushes have been applied; those of 0 samples too.
        newest: on a server, by worker the number of the newest push that was applied. The server writes both.
    """

    def __init__(self, workers: int) -> None:
        self.sent = self.acknowledged = 0
        self.applied = [0] * workers
        self.newest = [0] * workers

    def resume(self, pushes: Iterable[int]) -> None:
        """A server goes on from a checkpoint: so many of each worker are applied."""
        self.applied = list(pushes)
        self.newest = list(self.applied)

    def of_worker(self, worker: int) -> dict[str, Any]:
        """What a worker tells the rank that has the result."""
        return {"worker": worker, "sent": self.sent, "acknowledged": self.acknowledged}

    def of_server(self, server: int) -> dict[str, Any]:
        """What a server tells it."""
        return {"server": server, "applied": self.applied, "newest": self.newest}


def together(said: Iterable[Mapping[str, Any]], workers: int) -> dict[str, Any] | None:
    """All that ranks have told.

    Args:
        said: of each rank that lives, `PushNumbers.of_worker` or `of_server`; nothing of those that have no servers.
        workers: number of workers.

    Returns:
        `sent` and `acknowledged` by worker, None for those that died. `applied` by worker, on the server that has
        applied the fewest, and `servers`: what each of them has told. None where there are no servers.
    """
    rows = sorted((each for each in said if "server" in each), key=lambda each: each["server"])
    if not rows:
        return None
    found: dict[str, Any] = {"sent": [None] * workers, "acknowledged": [None] * workers}
    for each in said:
        if "sent" in each:
            for name in ("sent", "acknowledged"):
                found[name][each["worker"]] = each[name]
    found["applied"] = [min(each["applied"][worker] for each in rows) for worker in range(workers)]
    return found | {"servers": [{name: each[name] for name in ("server", "applied", "newest")} for each in rows]}


def lost(pushes: Mapping[str, Any]) -> int:
    """How many acknowledged pushes are not applied on some server, in what `together` has given."""
    known = [(worker, number) for worker, number in enumerate(pushes["acknowledged"]) if number is not None]
    return sum(
        max(0, number - min(min(each["applied"][worker], each["newest"][worker]) for each in pushes["servers"]))
        for worker, number in known
    )


def repeated(pushes: Mapping[str, Any]) -> list[str]:
    """Where the number of pushes that were applied is not the newest one's number: some more than once, or not at all.

    Returns:
        A line for each server and worker of whom that is so.
    """
    return [
        f"server {each['server']} has applied {count} pushes of worker {worker}, the newest of which is number {newest}"
        for each in pushes["servers"]
        for worker, (count, newest) in enumerate(zip(each["applied"], each["newest"], strict=True))
        if count != newest
    ]
