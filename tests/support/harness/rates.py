"""Settings of an update rule (`psgd.optim.rules.Settings`) that remember what they were told."""

from typing import Any


class Rates:
    """What a rule goes by; remembers what it has read."""

    size, skipped = 2, 0

    def __init__(self, *values: float) -> None:
        self.values, self.seen = list(values), list[list[float]]()

    def write(self, into: Any) -> None:
        """Puts the values into an array."""
        into[:] = self.values

    def read(self, values: Any) -> None:
        """Takes the values of an array."""
        self.values = values.tolist()
        self.seen.append(self.values)
