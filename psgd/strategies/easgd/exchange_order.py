"""What an order of exchanges with the centre is: the seam between the EASGD worker and its four orders."""

from typing import Protocol

from psgd.checkpoint.declared import Item
from psgd.worker.interface import Vector


class ExchangeOrder(Protocol):
    """How a worker meets the centre, and what the others learn of it. An order derives from it.

    Attributes:
        centre: as this worker knows it.
        displacement: a (x_i - xc) of the last exchange, to be taken from the parameters after the step.
        samples: of all workers, as far as known: what the schedule goes by.
        version: exchanges that made `centre`.
        stop: worker 0 asks to stop.
        bytes_sent, bytes_received: in messages of its own.
        first: worker 0 has died, and this is the first of those that live.
    """

    centre: Vector
    displacement: Vector
    samples: int = 0
    version: int = 0
    stop: bool = False
    bytes_sent: int = 0
    bytes_received: int = 0
    first: bool = False

    def begin(self, resumed: bool) -> None:
        """Gives all workers worker 0's parameters, which the centre has too. Collective, blocks.

        Args:
            resumed: everything was restored: gives them the centre only, and leaves the workers' parameters.
        """

    def note(self, samples: int, loss: float) -> None:
        """A step is being taken. Does not block."""

    def pull(self, rate: float, lr: float) -> None:
        """Takes `displacement` from the parameters as they are before the step. Blocks as the order says."""

    def push(self) -> None:
        """Ends the exchange, after the step. Blocks as the order says."""
        return

    def meet(self, steps: int) -> None:
        """This worker has taken so many steps. Makes a checkpoint here, where the order is not one that keeps pace."""
        return

    def kept(self) -> list[Item]:
        """What there is to save beside the worker's own: `centre` on one worker, which says so."""

    def after_restore(self, own: bool) -> None:
        """Sets what follows from it; `own`: this worker got back what it had itself. `begin` is called later."""

    def report(self, accuracy: float, loss: float) -> None:
        """Counts an evaluation."""

    def finish(self, waited_s: float) -> None:
        """No more steps; returns with the final centre once all workers are done. Blocks."""
