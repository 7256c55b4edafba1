"""Interleaved 1F1B: each rank has several smaller stages, which divides the bubble by their number.

The stages go round the ranks, so a microbatch comes past each rank once for each chunk. Microbatches go in groups of as
many as there are ranks: a group passes chunk 0 of all ranks, then chunk 1, and so on, and the next group follows.
Backward passes come in the same order of groups, last chunk first. Where the number of microbatches is not a multiple
of the ranks, groups are larger, of equal sizes or nearly: a smaller one would make ranks wait, as the first chunk of a
group has to be through before its second one begins. Each stage adds gradients from microbatch 0 to m - 1.
"""

from psgd.parallel.schedules.instruction import Instruction
from psgd.parallel.schedules.schedule import Program, Schedule


def build(ranks: int, microbatches: int, chunks: int = 2) -> Schedule:
    """Makes the schedule of one batch."""
    programs = tuple(_program(rank, ranks, microbatches, chunks) for rank in range(ranks))
    group = len(_groups(ranks, microbatches)[0])
    return Schedule(
        name="interleaved",
        ranks=ranks,
        microbatches=microbatches,
        chunks=chunks,
        programs=programs,
        gradient_order="ascending",
        in_flight_limit=tuple(
            min(microbatches * chunks, 2 * (ranks - rank - 1) + (chunks - 1) * group + 1) for rank in range(ranks)
        ),
    )


def _program(rank: int, ranks: int, microbatches: int, chunks: int) -> Program:
    groups = _groups(ranks, microbatches)
    passes = [(k, chunk) for group in groups for chunk in range(chunks) for k in group]
    forward = [Instruction("F", k, chunk) for k, chunk in passes]
    backward = [Instruction("B", k, chunks - 1 - chunk) for k, chunk in passes]
    # A group is through all but the last chunk; then, as in 1F1B, the last stage's first backward pass has to come
    # back. It moves one rank a forward and a backward pass, so 2 for each rank after this one.
    warmup = min(len(passes), 2 * (ranks - rank - 1) + (chunks - 1) * len(groups[0]) + 1)
    program = forward[:warmup]
    for index, each in enumerate(backward):
        program.append(each)
        program += forward[index + warmup : index + warmup + 1]
    return tuple(program)


def _groups(ranks: int, microbatches: int) -> list[range]:
    """Cuts the microbatches into groups of at least as many as ranks, larger ones first; into one if they are fewer."""
    parts = max(1, microbatches // ranks)
    stops = [-(-microbatches * (part + 1) // parts) for part in range(parts)]
    return [range(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]
