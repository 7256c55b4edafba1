"""For tests of PyTorch's modules on a GPU: where it is, losses there, and runs of hogwild in turns to compare with."""

from typing import Any

import numpy as np
import torch

from harness.device import cupy
from harness.torch_cases import batch, module_of, put


def gpu(comm: Any = None) -> torch.device:
    """The current GPU; skips the test where there is none. With `comm` its ranks take the node's GPUs in turn."""
    cupy()
    if comm is not None:
        from psgd.collectives.device.pick_gpu import choose_device

        choose_device(comm)
    return torch.device("cuda", torch.cuda.current_device())


def on_host(vector: Any) -> np.ndarray:
    """A copy of a vector of either side."""
    return vector.get() if hasattr(vector, "get") else vector.copy()


def loss_on(kind: str, module: Any, worker: int, clock: int) -> torch.Tensor:
    """That of a worker's batch, where the module is and in its dtype."""
    like = next(module.parameters())
    x, y = (each.to(like.device, like.dtype) for each in batch(worker, clock))
    return torch.nn.functional.mse_loss((module[:3] if kind == "unused" else module)(x), y)


def hogwild_in_turns(kind: str, dtype: torch.dtype, layout: Any, workers: int, steps: int, make: Any) -> np.ndarray:
    """What workers on GPUs come to that take turns: each computes on the parameters of its own last step.

    Args:
        kind: of the module.
        dtype: of all its parameters.
        layout: of the vector.
        workers: how many.
        steps: of each.
        make: an optimizer of a module, or a pair of one and its scheduler.
    """
    crew = [module_of(kind, 0).to(dtype) for _ in range(workers)]
    made = [make(module) for module in crew]
    shared = np.zeros(layout.size, np.float64 if dtype == torch.float64 else np.float32)
    _take(shared, crew[0], layout)
    views = [shared.copy() for _ in crew]
    for clock in range(steps):
        for worker, module in enumerate(crew):
            optimizer, scheduler = made[worker] if isinstance(made[worker], tuple) else (made[worker], None)
            put(module, layout, views[worker])
            optimizer.zero_grad(set_to_none=False)
            loss_on(kind, module, worker, clock).backward()
            put(module, layout, shared)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            _take(shared, module, layout)
            views[worker] = shared.copy()
    return shared


def _take(vector: np.ndarray, module: Any, layout: Any) -> None:
    into, names = layout.views(vector), {p.name for p in layout.parameters}
    for name, p in module.named_parameters():
        if name in names:
            into[name][...] = p.detach().numpy()
