"""Inference: forward passes only. A microbatch's buffers are free as soon as its output is on the way."""

from psgd.parallel.schedules.instruction import Instruction
from psgd.parallel.schedules.schedule import Schedule


def build(ranks: int, microbatches: int) -> Schedule:
    """Makes the schedule of one batch."""
    return Schedule(
        name="inference",
        ranks=ranks,
        microbatches=microbatches,
        chunks=1,
        programs=(tuple(Instruction("F", k) for k in range(microbatches)),) * ranks,
        gradient_order="none",
        in_flight_limit=(min(2, microbatches),) * ranks,
    )
