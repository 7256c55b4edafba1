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
            which F is done, and B or W is not.
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


def alive(program: Program) -> int:
    """Counts the most microbatches of a program that are in flight at once: after F, and before B's or W's end."""
    most = now = 0
    for each in program:
        now += {"F": 1, "B": -1, "W": -1}.get(each.kind, 0)
        most = max(most, now)
    return most
