"""Everything a forward and backward pass writes besides gradients: one context for each microbatch."""

from dataclasses import dataclass
from typing import Any

from psgd.kernels.array import Array


@dataclass(eq=False)
class Context:
    """Buffers for up to `batch` samples, made by `Model.context`. Several may be alive at once.

    Attributes:
        batch: most samples of one pass.
        xp: `numpy` or `cupy`, where the buffers are.
        owner: the model that made it; no other may use it.
        states: one for each layer.
        labels: int64 buffer on the device.
        logits: output of the forward pass that waits for its backward pass; None when none does.
    """

    batch: int
    xp: Any
    owner: Any
    states: list[Any]
    labels: Array
    logits: Array = None
