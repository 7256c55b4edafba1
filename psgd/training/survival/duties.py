"""What one rank does for the whole run: it writes the log and TensorBoard's files, shows the progress, has the result.

Rank 0 begins with that. Where the run goes on without it, another rank takes it over, behind what was written: the
lowest that lives and has the run's counters (`psgd.metrics.run_metrics`). Whoever leads is rank 0 of the communicator
that `psgd.training.survival.survival.Survival.end` makes, and so prints the result and reports the exit code.
"""

from collections.abc import Callable
from typing import Any, cast

from mpi4py import MPI

from psgd.checkpoint.requests import CheckpointRequest
from psgd.config import TrainConfig
from psgd.metrics.event_log import EventLog
from psgd.metrics.run_metrics import RunMetrics
from psgd.metrics.tensorboard import TensorBoard
from psgd.metrics.wait_log import WaitLog
from psgd.training.events import ProgressDisplay, write_waits


class Duties:
    """On all ranks of a run; a context that closes the files.

    Args:
        config: of the run.
        leads: this rank has the duties.
        display: shows the progress where this rank leads; None has none.
        request: for checkpoints from outside; who leads says what came of it.

    Attributes:
        leads: as given; true from `take_over` on.
        log, board: write nothing on ranks that do not lead.
        also: called by `take_over`, last: what else has to be done by who leads.
    """

    def __init__(
        self,
        config: TrainConfig,
        leads: bool,
        display: ProgressDisplay | None = None,
        request: CheckpointRequest | None = None,
    ) -> None:
        self.leads = leads
        self.also: list[Callable[[], None]] = []
        self.log = EventLog(config.log if leads else None, append=config.resume)
        self.board = TensorBoard(config.tensorboard if leads else None)
        self._config, self._display, self._request = config, display, request
        self._metrics: RunMetrics | None = None
        self._shown: tuple[int, int, int] | None = None

    def watch(self, metrics: RunMetrics) -> None:
        """These are the run's counters: who leads says what happens to them."""
        metrics.leads, self._metrics = self.leads, metrics
        self._keep_waits()

    def show(self, total_samples: int, epochs: int, done: int) -> None:
        """The run begins; on all ranks, of which one shows it."""
        self._shown = total_samples, epochs, done
        if self.leads and self._display is not None:
            self._display.start(*self._shown)

    def take_over(self) -> None:
        """From now on this rank does it; nothing where it does already. Does not communicate."""
        if self.leads:
            return
        self.leads = True
        config = self._config
        if config.log is not None:
            self.log.open(config.log, append=True)
        if config.tensorboard is not None:
            self.board.open(config.tensorboard)
        if self._request is not None:
            self._request.leads = True
        if self._metrics is not None:
            self._metrics.leads = True
            self._keep_waits()
        if self._display is not None and self._shown is not None:
            show: Callable[[], Any] | None = getattr(self._display, "show", None)
            if show is not None:
                show()
            self._display.start(*self._shown)
        for act in self.also:
            act()

    def end(self, result: dict[str, Any]) -> None:
        """The run is over; on the rank that leads."""
        assert self._metrics is not None
        write_waits(self.log, self._metrics)
        self.log.write("end", **result)
        self.board.finish(self._metrics)

    def _keep_waits(self) -> None:
        """Only who leads writes them down; elsewhere they would pile up."""
        if self.leads and self._metrics is not None and self._config.log is not None:
            self._metrics.waits = WaitLog()

    def first(self, living: MPI.Intracomm) -> MPI.Intracomm:
        """The same ranks with the one that leads in front. Collective over `living`, blocks."""
        return cast(MPI.Intracomm, living.Split(0, -1 if self.leads else living.Get_rank()))

    def __enter__(self) -> "Duties":
        return self

    def __exit__(self, *error: object) -> None:
        self.log.close()
        self.board.close()
