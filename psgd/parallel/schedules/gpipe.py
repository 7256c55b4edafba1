"""GPipe: all forward passes, then all backward passes in reverse order.

The last microbatch's backward pass can begin at once, on the last stage; so gradients are added from microbatch m - 1
down to 0. All m microbatches are in flight.
"""

from psgd.parallel.schedules.instruction import Instruction
from psgd.parallel.schedules.schedule import Schedule


def build(ranks: int, microbatches: int) -> Schedule:
    """Makes the schedule of one batch."""
    forward = [Instruction("F", k) for k in range(microbatches)]
    backward = [Instruction("B", k) for k in reversed(range(microbatches))]
    return Schedule(
        name="gpipe",
        ranks=ranks,
        microbatches=microbatches,
        chunks=1,
        programs=(tuple(forward + backward),) * ranks,
        gradient_order="descending",
        in_flight_limit=(microbatches,) * ranks,
    )
