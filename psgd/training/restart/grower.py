"""The end of a part of a run that grows: at an epoch's end, rank 0 asks all to save and leave."""

import math

from psgd.checkpoint.requests import CheckpointRequest
from psgd.training.events import ProgressDisplay


class Grower:
    """Implements `psgd.training.events.ProgressDisplay`: shows what another one shows, and looks how far the run is.

    Args:
        display: the other one.
        request: of rank 0.
        share: of the epochs, behind which the next epoch's end is the last.

    Attributes:
        asked: it has.
    """

    def __init__(self, display: ProgressDisplay, request: CheckpointRequest, share: float) -> None:
        self._display, self._request, self._share = display, request, share
        self._epochs = 0
        self.asked = False

    def start(self, total_samples: int, epochs: int, done: int = 0) -> None:
        self._epochs = epochs
        self._display.start(total_samples, epochs, done)

    def update(self, samples: int, epoch: int, loss: float, accuracy: float | None = None) -> None:
        self._display.update(samples, epoch, loss, accuracy)
        if not self.asked and max(1, math.ceil(self._share * self._epochs - 1e-9)) <= epoch < self._epochs:
            self.asked = True
            self._request.ask(stop=True)
