"""Everything a forward and backward pass writes besides gradients: one context for each microbatch."""

from dataclasses import dataclass
from typing import Any

from psgd.kernels.array import Array


@dataclass(eq=False)
class Context:
    """Buffers for up to `batch` samples, made by `Stage.context`. Several may be alive at once.

    Attributes:
        batch: most samples of one pass.
        xp: `numpy` or `cupy`, where the buffers are.
        owner: the stage that made it; no other may use it.
        states: one for each layer.
        wants_dx: whether backward returns the first layer's input gradient.
        output: of the forward pass that waits for its backward pass; None when none does.
        labels: int64 buffer on the device, where the owner is a model.
        dlogits: where the loss writes its gradient; None: over the logits.
    """

    batch: int
    xp: Any
    owner: Any
    states: list[Any]
    wants_dx: bool
    output: Array = None
    labels: Array = None
    dlogits: Array = None
