"""The buffers of a module, such as BatchNorm's statistics: packed for messages and checkpoints, and their mean."""

from collections.abc import Sequence

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.kernels.errors import CheckpointError, UsageError
from psgd.torch import parameters
from psgd.worker.bound_model import Wait

Tensors = Sequence[torch.Tensor]

MODES = ("average", "broadcast", "local")


def checked(mode: str) -> str:
    """The mode, if there is such a one."""
    if mode not in MODES:
        raise UsageError(f"psgd.torch.wrap: buffers: expected one of {', '.join(MODES)}, got {mode!r}")
    return mode


def described(module: torch.nn.Module) -> list[tuple[str, str, list[int]]]:
    """Names, dtypes and shapes of buffers and frozen parameters, which are the same on all ranks."""
    named = [*module.named_buffers(), *parameters.frozen(module)]
    return [(name, str(b.dtype), list(b.shape)) for name, b in named]


def packed(tensors: Tensors) -> NDArray[np.uint8]:
    """A copy of all, byte by byte, one after the other."""
    parts = [b.detach().reshape(-1).contiguous().view(torch.uint8).cpu() for b in tensors]
    return torch.cat(parts).numpy() if parts else np.empty(0, np.uint8)


def unpack(tensors: Tensors, data: NDArray[np.uint8]) -> None:
    """Fills them with what `packed` gave."""
    at, source = 0, torch.from_numpy(np.require(data, requirements="W"))
    for buffer in tensors:
        stop = at + buffer.numel() * buffer.element_size()
        with torch.no_grad():
            buffer.copy_(source[at:stop].clone().view(buffer.dtype).reshape(buffer.shape))
        at = stop


def restore(tensors: Tensors, saved: NDArray[np.uint8] | list[NDArray[np.uint8]], means: bool) -> None:
    """Fills them with this worker's own of a checkpoint, or of a list by worker with the mean or the first ones.

    Whole numbers are the first worker's.

    Raises:
        CheckpointError: they are not of these tensors.
    """
    size = packed(tensors).size
    each = saved if isinstance(saved, list) else [saved]
    if wrong := [data.size for data in each if data.size != size]:
        raise CheckpointError(f"buffers of the module: expected {size} bytes, got {wrong[0]}: was it another module?")
    unpack(tensors, each[0])
    if not means or len(each) == 1:
        return
    copies = [[torch.empty_like(b) for b in tensors] for _ in each]
    for copy, data in zip(copies, each, strict=True):
        unpack(copy, data)
    for index, buffer in enumerate(tensors):
        if buffer.is_floating_point():
            with torch.no_grad():
                buffer.copy_(torch.stack([copy[index].double() for copy in copies]).mean(0))


def broadcast(tensors: Tensors, comm: MPI.Comm, wait: Wait, first: int, takes: bool = True) -> None:
    """Gives all ranks that take them the buffers of rank `first`. Collective, blocks."""
    data = packed(tensors)
    if data.size:
        wait(comm.Ibcast(data, first))
        if takes:
            unpack(tensors, data)


def average(tensors: Tensors, comm: MPI.Comm, wait: Wait, first: int, counts: bool) -> None:
    """On rank `first` alone, the mean over the ranks that count, of what are real numbers. Collective, blocks."""
    reals = [b for b in tensors if b.is_floating_point() and b.numel()]
    if not reals:
        return
    flat = torch.cat([*(b.detach().reshape(-1).double().cpu() for b in reals), torch.ones(1, dtype=torch.float64)])
    mine = flat.numpy() if counts else np.zeros(flat.numel())
    total = np.empty_like(mine)
    wait(comm.Ireduce(mine, total, MPI.SUM, first))
    if comm.Get_rank() != first or not total[-1]:
        return
    means, at = torch.from_numpy(total[:-1] / total[-1]), 0
    for buffer in reals:
        with torch.no_grad():
            buffer.copy_(means[at : at + buffer.numel()].reshape(buffer.shape))
        at += buffer.numel()
