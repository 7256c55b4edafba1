"""How parts of a module that was made without memory get first values: by the seed and a number, and nothing else."""

import contextlib
from collections.abc import Callable, Iterator

import torch

from psgd.runtime.rng import bits


def has_own(part: torch.nn.Module) -> bool:
    """Whether a part has tensors itself, not in parts of it."""
    return any(True for _ in part.parameters(recurse=False)) or any(True for _ in part.buffers(recurse=False))


def reset_of(part: torch.nn.Module) -> Callable[[], object] | None:
    """What gives these tensors first values as the part's constructor does; None where it has no such method."""
    return getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)


@contextlib.contextmanager
def drawing(seed: int, number: int) -> Iterator[None]:
    """Inside, what is drawn depends on the seed and this number alone; generators are as before then."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        drawn = bits(seed, "init", number) >> 1
        torch.default_generator.manual_seed(drawn)
        if devices:
            torch.cuda.manual_seed_all(drawn)
        yield
