"""Counting local steps, which others learn at exchanges only."""


class ExchangeCounts:
    """What a worker did since its last exchange.

    Attributes:
        pushes: steps with samples.
        samples: behind their gradients.
        loss: sum over the samples.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """It has been sent."""
        self.pushes = self.samples = 0
        self.loss = 0.0

    def note(self, samples: int, loss: float) -> None:
        """Adds a step; one of 0 samples is none."""
        if samples:
            self.pushes += 1
            self.samples += samples
            self.loss += samples * loss
