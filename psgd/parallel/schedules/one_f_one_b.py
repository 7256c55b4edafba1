"""1F1B: one forward, one backward pass in turn, so that few microbatches are in flight; flushed after each batch.

Rank i of p first does min(m, p - i) forward passes: the first backward pass reaches it just after these. From then on
each backward pass frees what the next forward pass needs. Gradients are added from microbatch 0 to m - 1. The bubble
is GPipe's, the activations alive are min(m, p - i) instead of m.
"""

from psgd.parallel.schedules.instruction import Instruction
from psgd.parallel.schedules.schedule import Program, Schedule


def build(ranks: int, microbatches: int) -> Schedule:
    """Makes the schedule of one batch."""
    warmup = tuple(min(microbatches, ranks - rank) for rank in range(ranks))
    return Schedule(
        name="1f1b",
        ranks=ranks,
        microbatches=microbatches,
        chunks=1,
        programs=tuple(in_turn(each, microbatches) for each in warmup),
        gradient_order="ascending",
        in_flight_limit=warmup,
    )


def in_turn(warmup: int, microbatches: int) -> Program:
    """Returns F `warmup` times, then B and F in turn, then the rest of B."""
    program = [Instruction("F", k) for k in range(warmup)]
    for k in range(microbatches):
        program.append(Instruction("B", k))
        if k + warmup < microbatches:
            program.append(Instruction("F", k + warmup))
    return tuple(program)
