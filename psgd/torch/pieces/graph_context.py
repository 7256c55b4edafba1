"""What a stage of PyTorch's layers has of one microbatch between its passes."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass
class GraphDraws:
    """Whether a pass is one of training, in which dropout drops.

    Attributes:
        on: it is.
        wanted: False: without a key, PyTorch's own generator goes on.
    """

    on: bool = True
    wanted: bool = False


@dataclass(eq=False)
class GraphContext:
    """One microbatch between its passes.

    Attributes:
        wants_dx: whether backward returns the input's gradient.
        draws: as `psgd.nn.stage.Context`.
        x: the input, a leaf of the graph.
        y: the output, or the loss.
        key: what random numbers depend on; None: on PyTorch's generator.
        xp: of what is passed on: `numpy`, or `cupy` of what is on a GPU.
    """

    wants_dx: bool
    draws: GraphDraws = field(default_factory=GraphDraws)
    x: torch.Tensor | None = None
    y: torch.Tensor | None = None
    key: tuple[int, int] | None = None
    xp: Any = np

    def draw(self, key: int, samples: NDArray[np.integer[Any]]) -> None:
        """The next pass is one of training, and draws by the key and the number of its first sample."""
        self.draws.on, self.key = True, (key, int(samples[0]))
