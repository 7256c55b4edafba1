"""When a run without servers is cut, so that its state can be saved: what all strategies have in common.

A cut is a point at which every worker's state fits the others': all that was sent before it has come, nothing that was
sent after it. Workers that keep pace agree on it in what they exchange anyway; the others meet for it
(`psgd.worker.checkpoint_barrier`).
"""

from collections.abc import Callable, Sequence

from psgd.checkpoint.state import State
from psgd.runtime.jsonable import JSON


class CheckpointVotes:
    """A worker's requests for checkpoints, and what all have agreed on. Base of the workers without servers.

    Attributes:
        saving: the newest step ended at a cut.
        leaving: all stop after that cut.
        cut: what the newest one is called.
        on_cut: called by `finish` where a cut is made while it waits.
        cut_at: steps at the newest agreement, or 0.
        wish: this worker's, not told yet: 0 none, 1 a cut, 2 a cut after which all stop.
        algorithms: of the collectives that parameters or gradients go through, by verb.
        notes: what else there is to say of a run that goes on.
    """

    def __init__(self) -> None:
        self.saving = self.leaving = False
        self.cut = self.wish = 0
        self.on_cut: Callable[[], None] = _nothing
        self._cut_every = self.cut_at = 0
        self.algorithms: dict[str, JSON] = {}
        self.notes: list[str] = []

    def ask_save(self, stop: bool) -> None:
        """See `psgd.worker.interface.Worker`."""
        self.wish = max(self.wish, 1 + stop)

    def save_every(self, steps: int) -> None:
        """See `psgd.worker.interface.Worker`."""
        self._cut_every = steps

    def due(self, steps: int) -> bool:
        """Whether a cut is due by the number of steps alone."""
        return bool(self._cut_every) and steps // self._cut_every > self.cut_at // self._cut_every

    def agree(self, wish: int, steps: int) -> None:
        """All workers have come to here, with the same arguments: are they cut here?

        Args:
            wish: the largest of any worker.
            steps: what intervals go by; no less than before.
        """
        self.saving = wish > 0 or self.due(steps)
        self.cut_at = steps
        if self.saving:
            self.cut = max(self.cut + 1, steps)
            self.leaving = self.leaving or wish > 1

    def hear(self, saving: int, cut: int) -> None:
        """Another worker has agreed for all: 0 no cut here, 1 one of this name, 2 one after which all stop."""
        self.saving = saving > 0
        if self.saving:
            self.cut, self.leaving = cut, self.leaving or saving > 1

    def told(self) -> int:
        """This worker's wish, which is being told to all."""
        wish, self.wish = self.wish, 0
        return wish

    def facts(self) -> dict[str, JSON]:
        """What `resume` needs; the same on all workers."""
        return {"cuts": [self.cut, self.cut_at], "algorithms": self.algorithms}

    def resume(self, saved: Sequence[State]) -> None:
        """Goes on after the cut at which these were saved."""
        for state in saved:
            version = int(state.facts.get("version", 0))
            cut, at = state.facts.get("cuts", (version, version))
            self.cut, self.cut_at = max(self.cut, int(cut)), max(self.cut_at, int(at))
        was = saved[0].facts.get("algorithms") if saved else None
        if was and was != self.algorithms:
            self.notes = [
                f"collectives: {_said(self.algorithms)}, were {_said(was)}: sums may differ in their last bits"
            ]


def _said(algorithms: JSON) -> str:
    return ", ".join(f"{verb} by {name}" for verb, name in dict(algorithms).items())  # type: ignore[arg-type,call-overload]


def _nothing() -> None:
    pass
