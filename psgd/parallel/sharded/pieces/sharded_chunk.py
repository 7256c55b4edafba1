"""A stage that leaves out the microbatches that a small batch does not have, but not their turns."""

from psgd.nn.stage import OnReady
from psgd.parallel.microbatches import Batch
from psgd.parallel.schedules.instruction import Instruction
from psgd.parallel.sharded.exchange import Exchange
from psgd.parallel.sharded.pieces import turns
from psgd.parallel.stages.chunk import Chunk, Send


class ShardedChunk(Chunk):
    """As `Chunk`, in a program for more microbatches than there are.

    Attributes:
        exchange: of the rank's units; set before the first batch.
        units: of this stage.
        present: how many microbatches there are.
    """

    exchange: Exchange
    units: range
    present = 0

    def begin(self, microbatches: int, on_ready: OnReady | None) -> None:
        self.present = microbatches
        super().begin(microbatches, on_ready)

    def ready(self, instruction: Instruction) -> bool:
        return instruction.microbatch >= self.present or super().ready(instruction)

    def run(self, instruction: Instruction, batch: Batch, send: Send) -> None:
        if instruction.microbatch < self.present:
            super().run(instruction, batch, send)
        else:
            self._go_by(instruction)

    def evaluate(self, microbatch: int, batch: Batch, send: Send) -> tuple[float, float]:
        if microbatch < self.present:
            return super().evaluate(microbatch, batch, send)
        self._go_by(Instruction("F", microbatch))
        return 0.0, 0.0

    def _go_by(self, instruction: Instruction) -> None:
        for unit, backward in turns.order([instruction], {instruction.chunk: self.units}):
            self.exchange.arrive(unit, backward)
            self.exchange.leave(unit, backward)
