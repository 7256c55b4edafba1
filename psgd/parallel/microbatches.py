"""A batch in microbatches: all of one size but the last, which has what is left."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Batch:
    """The samples of one step, or of one evaluation.

    Attributes:
        samples: how many there are, 1 or more.
        size: of a microbatch.
        x: samples; used on the first stage only.
        y: labels; used on the last stage only.
        key: by which layers draw random numbers; None: they do not.
        numbers: (samples,) integers, by which they draw too.
        tally: is told of labels and predictions, where the last stage is evaluated; None: nobody is.
    """

    samples: int
    size: int
    x: Any
    y: Any
    key: int | None = None
    numbers: Any = None
    tally: Any = None

    @property
    def microbatches(self) -> int:
        """How many there are."""
        return -(-self.samples // self.size)

    def part(self, microbatch: int) -> slice:
        """Returns which samples are in a microbatch."""
        start = microbatch * self.size
        return slice(start, min(start + self.size, self.samples))

    def count(self, microbatch: int) -> int:
        """Returns how many these are."""
        part = self.part(microbatch)
        return int(part.stop - part.start)
