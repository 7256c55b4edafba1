"""Random numbers of a block of code: begun at a seed, on the CPU and on a GPU, with no trace in the generators."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """PyTorch's generators begin at the seed; behind the block they are as before. Does not wait for a GPU.

    Args:
        seed: 0 to 2**63 - 1.
        device: where numbers are drawn, beside the CPU; a GPU's has an index.
    """
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device.index] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            torch.cuda.default_generators[device.index].manual_seed(seed)
        yield
