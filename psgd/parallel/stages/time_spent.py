"""What a rank of a pipeline has done and waited for."""

from dataclasses import dataclass


@dataclass
class Counters:
    """Of one rank, over all its gradients so far; `clear` begins anew.

    Attributes:
        gradients: computed so far.
        compute_s: seconds in forward and backward passes.
        evaluation_s: seconds in passes of evaluations, which the others do not count.
        bubble_s: seconds in which the rank waited for other stages.
        in_flight_max: most microbatches whose activations were alive at once, over all its chunks.
    """

    gradients: int = 0
    compute_s: float = 0.0
    evaluation_s: float = 0.0
    bubble_s: float = 0.0
    in_flight_max: int = 0

    @property
    def bubble_share(self) -> float:
        """Of the time in `gradient`, how much was waiting: 0 to 1."""
        whole = self.compute_s + self.bubble_s
        return self.bubble_s / whole if whole else 0.0

    def clear(self) -> None:
        """Sets all to zero."""
        self.gradients = self.in_flight_max = 0
        self.compute_s = self.evaluation_s = self.bubble_s = 0.0
