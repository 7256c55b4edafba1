"""What the PyTorch peers of `psgd bench train` hand to each of their processes."""

from dataclasses import dataclass

import torch
from torch import nn

from psgd.launch.bench.peers.torch_options import TorchOptions


@dataclass(frozen=True)
class TrainJob:
    """Handed to each process; its tensors lie in shared memory.

    Attributes:
        test: normalized samples and labels.
        times: float64 (workers, 2), the loop's start and end on the clock that all processes share.
        evaluations: float64 (evaluations within the loop, 2): seconds since the start, accuracy. Worker 0's.
    """

    options: TorchOptions
    model: nn.Module
    x: torch.Tensor
    y: torch.Tensor
    test: tuple[torch.Tensor, torch.Tensor]
    times: torch.Tensor
    evaluations: torch.Tensor
    folder: str
