"""When a run without servers makes a checkpoint: what all of its strategies have in common.

Workers that keep pace agree on it in what they exchange anyway. The others meet for it
(`psgd.worker.serverless.checkpoint_barrier`).
"""

from collections.abc import Sequence

from psgd.checkpoint.requests import SAVE
from psgd.checkpoint.state import State
from psgd.runtime.jsonable import JSON, section, whole, wholes
from psgd.worker.checkpoint_status import CheckpointStatus


class CheckpointVotes(CheckpointStatus):
    """A worker's requests, and what all have agreed on. Implements `psgd.checkpoint.declared.Item`.

    Attributes:
        decided_at: steps at the newest agreement, or 0.
        newest: what the newest agreement was, in numbers, for who has missed it (`catch_up`).
        algorithms: of the collectives that parameters or gradients go through, by verb.
    """

    def __init__(self) -> None:
        super().__init__()
        self.decided_at = 0
        self.algorithms: dict[str, JSON] = {}
        self.newest = 0, 0, 0, 0

    def due(self, steps: int) -> bool:
        """Whether a checkpoint is due by the number of steps alone."""
        return bool(self.every) and steps // self.every > self.decided_at // self.every

    def take_request(self) -> int:
        """This worker's request, which the caller passes on to all."""
        request, self.request = self.request, 0
        return request

    def decide(self, request: int, steps: int) -> None:
        """All workers call this at the same point, with the same arguments: is there a checkpoint here?

        Args:
            request: the largest of any worker.
            steps: what intervals go by; no less than before.
        """
        self.reached = request > 0 or self.due(steps)
        self.decided_at = steps
        if self.reached:
            self.step = max(self.step + 1, steps)
            self.stopping = self.stopping or request > SAVE
        self.newest = int(self.reached), self.decided_at, self.step, int(self.stopping)

    def keep(self) -> tuple[int, ...]:
        """What `put_back` needs, before an agreement that may come to nothing."""
        return self.request, self.decided_at, self.step, int(self.stopping)

    def put_back(self, kept: Sequence[int]) -> None:
        """The agreement has come to nothing: all is as it was, and what was requested still is."""
        request, self.decided_at, self.step, stopping = kept
        self.request, self.stopping, self.reached = max(self.request, request), bool(stopping), False

    def catch_up(self, newest: Sequence[int]) -> None:
        """The others have agreed without this worker, as it was about to: their `newest`."""
        reached, self.decided_at, self.step, stopping = self.newest = tuple(newest)  # type: ignore[assignment]
        self.reached, self.stopping = bool(reached), bool(stopping)

    def follow(self, decision: int, step: int) -> None:
        """Another worker has decided for all.

        Args:
            decision: 0 for no checkpoint here, `SAVE` for one, `SAVE_AND_STOP` for one after which all stop.
            step: what it is called.
        """
        self.reached = decision > 0
        if self.reached:
            self.step, self.stopping = step, self.stopping or decision > SAVE

    def save(self, state: State, worker: int) -> None:
        state.facts |= {"cuts": [self.step, self.decided_at], "algorithms": self.algorithms}

    def restore(self, own: State | None, states: Sequence[State], worker: int) -> list[str]:
        saved = states if own is None else [own]
        for state in saved:
            version = whole({"version": 0} | state.facts, "version")
            step, decided_at = wholes({"cuts": [version, version]} | state.facts, "cuts", 2)
            self.step, self.decided_at = max(self.step, step), max(self.decided_at, decided_at)
        was = section({"algorithms": {}} | saved[0].facts, "algorithms") if saved else {}
        if not was or was == self.algorithms:
            return []
        return [f"collectives: {_text(self.algorithms)}, were {_text(was)}: sums may differ in their last bits"]


def _text(algorithms: dict[str, JSON]) -> str:
    return ", ".join(f"{verb} by {name}" for verb, name in algorithms.items()) or "unit by unit"  # where sharded
