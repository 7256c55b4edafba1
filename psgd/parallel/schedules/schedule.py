"""A schedule: a list of instructions for each rank, and what a reader may rely on."""

from dataclasses import dataclass
from typing import Literal

from psgd.parallel.schedules.instruction import Instruction

Program = tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """What all ranks of a pipeline do for one batch, or with `flushes` false for a whole run.

    Attributes:
        name: in the catalog.
        ranks: p, of the pipeline; 1 or more.
        microbatches: m, of the batch (or run); 1 or more, also fewer than ranks.
        chunks: stages of each rank.
        programs: one for each rank, in the order in which that rank computes.
        gradient_order: the order in which every stage adds the gradients of microbatches: "ascending" is 0 to m - 1,
            "descending" m - 1 to 0, "none" has no gradients. Floating-point sums in other orders have other bits.
        in_flight_limit: for each rank, the most microbatches (times chunks) whose activations are alive at once: of
            which F has begun, and B or W has not ended.
        flushes: all passes of a batch use the same parameters, and an optimizer step follows them. Where false, the
            programs say by U when a rank takes its steps.
    """

    name: str
    ranks: int
    microbatches: int
    chunks: int
    programs: tuple[Program, ...]
    gradient_order: Literal["ascending", "descending", "none"]
    in_flight_limit: tuple[int, ...]
    flushes: bool = True

    @property
    def stages(self) -> int:
        """How many stages the model is cut into."""
        return self.ranks * self.chunks


def alive(program: Program, chunk: int | None = None) -> int:
    """Counts the most microbatches of a program that are in flight at once: from F to the end of B or W.

    Args:
        program: of one rank.
        chunk: count this chunk's alone.

    Returns:
        Without backward passes: at most 2, one that is computed while another is on the way.
    """
    kinds = [each.kind for each in program if chunk in (None, each.chunk)]
    if not {"B", "W"} & set(kinds):
        return min(2, kinds.count("F"))
    most = now = 0
    for kind in kinds:
        now += {"F": 1, "B": -1, "W": -1}.get(kind, 0)
        most = max(most, now)
    return most
