"""What `psgd bench gpt2` trains."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class GPT2Trial:
    """The options of the command.

    Attributes:
        batch_size: samples of a step, of all ranks.
        microbatch: samples of a rank and pass.
        steps: of each contender, the first of which warms.
        lr: of Adam: 48 layers are not stable at much more, as it does not rise from 0.
    """

    layers: int
    width: int
    heads: int
    context: int
    vocabulary: int
    batch_size: int
    microbatch: int
    shard: int
    steps: int
    ranks: int
    device: str
    lr: float = 3e-5

    @property
    def passes(self) -> int:
        """Forward and backward passes of a rank in a step."""
        return self.batch_size // (self.ranks * self.microbatch)

    @property
    def flops(self) -> float:
        """Of the products of a step, all ranks together: attention without its mask, forward twice but for scores."""
        tokens = self.batch_size * self.context
        inside = 12 * self.layers * self.width**2
        attention = 2 * self.layers * self.width * self.context
        return tokens * (8.0 * (inside + attention) + 6.0 * self.width * self.vocabulary)


def tell(rank: int, name: str, losses: Sequence[float], seconds: Sequence[float]) -> None:
    """On rank 0 says on stderr how a contender's last step went."""
    if rank == 0:
        print(f"{name}, step {len(losses)}: loss {losses[-1]:.4f}, {seconds[-1]:.2f} s", file=sys.stderr, flush=True)
