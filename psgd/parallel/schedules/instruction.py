"""One entry of a pipeline's schedule: what is computed. What is sent and received follows from it.

A model is cut into `ranks * chunks` stages. Stage s is chunk `s // ranks` of rank `s % ranks`, so that with one chunk
a rank stage and rank are the same number, and with more of them the stages go round the ranks.

No instruction names a message. Each message is an activation from a stage to the next one or a gradient back, and
`source` names the instruction that makes what another one needs:

- F of stage s needs what F of stage s - 1 made of that microbatch; of stage 0, the samples;
- B or X of stage s needs the input gradient that B or X of stage s + 1 made; of the last stage, the labels;
- W needs nothing from others: its own X came before.

A message is sent as soon as it is made. With one rank, or as many chunks as make a stage follow one of its own rank,
source and destination may be the same rank: nothing is sent then.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["F", "B", "X", "W", "U"]


@dataclass(frozen=True, slots=True)
class Instruction:
    """What a rank computes in one go.

    Attributes:
        kind: F is a forward pass. B is a backward pass: input gradient and parameter gradients. X is the first of
            these alone, W the second. U takes an optimizer step with the gradients added since the last one; only
            schedules that do not flush have it, in the others a step follows the whole schedule.
        microbatch: its number, from 0. Of U: the last microbatch whose gradient is in it.
        chunk: which of the rank's chunks, from 0. Of U: 0.
    """

    kind: Kind
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        """As in a grid: `F3`, or `F3.1` in chunk 1."""
        return f"{self.kind}{self.microbatch}" + (f".{self.chunk}" if self.chunk else "")


def stage(rank: int, chunk: int, ranks: int) -> int:
    """Returns the stage that is this chunk of this rank."""
    return chunk * ranks + rank


def place(stage: int, ranks: int) -> tuple[int, int]:
    """Returns the rank and the chunk that a stage is."""
    return stage % ranks, stage // ranks


def source(instruction: Instruction, rank: int, ranks: int, chunks: int) -> tuple[int, int, str] | None:
    """Says where the input of an instruction comes from.

    Returns:
        The rank and its chunk, and "forward" for an activation or "backward" for a gradient; None for samples, labels
        and what the rank has already.
    """
    at = stage(rank, instruction.chunk, ranks)
    if instruction.kind == "F" and at > 0:
        return *place(at - 1, ranks), "forward"
    if instruction.kind in ("B", "X") and at < ranks * chunks - 1:
        return *place(at + 1, ranks), "backward"
    return None


def destination(instruction: Instruction, rank: int, ranks: int, chunks: int) -> tuple[int, int, str] | None:
    """Says where the output of an instruction goes: as `source`, the rank and chunk that need it, or None."""
    at = stage(rank, instruction.chunk, ranks)
    if instruction.kind == "F" and at < ranks * chunks - 1:
        return *place(at + 1, ranks), "forward"
    if instruction.kind in ("B", "X") and at > 0:
        return *place(at - 1, ranks), "backward"
    return None
