"""PyTorch's side of `psgd bench gpt2`: FSDP2 with its activation checkpointing, on the same tokens."""

import os
import time
from collections.abc import Callable
from typing import Any

import torch
from mpi4py import MPI
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard

from psgd.launch.bench.ddp.torch_ranks import process_group
from psgd.launch.bench.gpt2.trial import GPT2Trial, tell
from psgd.launch.bench.peers import torch_gpt

_STD = 0.02


def train(
    comm: MPI.Intracomm, trial: GPT2Trial, tokens: Callable[[int, int], tuple[Any, Any]], lr: float
) -> tuple[list[float], list[float], int]:
    """Returns losses, seconds of each step, and the most bytes that PyTorch had of the GPU. Collective, blocks.

    Args:
        comm: all ranks, each with a GPU, which CuPy has chosen.
        trial: what is trained.
        tokens: samples and labels of a step's pass.
        lr: of Adam.
    """
    import cupy

    device = torch.device("cuda", cupy.cuda.Device().id)
    torch.cuda.set_device(device)
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    with process_group(comm, "nccl"):
        return steps(comm, trial, tokens, lr, device)


def sharded(trial: GPT2Trial, device: torch.device) -> nn.Module:
    """The module, made without memory, cut over the ranks, and drawn in its parts."""
    with torch.device("meta"):
        module = torch_gpt.GPT(trial.vocabulary, trial.context, trial.layers, trial.width, trial.heads)
    for number, block in enumerate(module.blocks):
        module.blocks[number] = fully_shard(checkpoint_wrapper(block))
    fully_shard(module)
    module.to_empty(device=device)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            mine = parameter.to_local()
            if parameter.dim() > 1:
                mine.normal_(std=_STD)
            else:
                mine.fill_(float(name.endswith("weight")))  # LayerNorms', as biases are 0
    return module


def steps(
    comm: MPI.Intracomm,
    trial: GPT2Trial,
    tokens: Callable[[int, int], tuple[Any, Any]],
    lr: float,
    device: torch.device,
) -> tuple[list[float], list[float], int]:
    """As `train`, in a process group that there is."""
    torch.manual_seed(comm.rank)
    module = sharded(trial, device)
    optimizer = torch.optim.Adam(module.parameters(), lr=lr, fused=True)
    losses, seconds = [], []
    for step in range(trial.steps):
        comm.Barrier()
        began, total = time.perf_counter(), torch.zeros((), device=device)
        for number in range(trial.passes):
            module.set_requires_gradient_sync(number == trial.passes - 1)
            x, y = (torch.as_tensor(each).to(device, torch.int64) for each in tokens(step, number))
            loss = nn.functional.cross_entropy(module(x).flatten(0, 1), y.flatten()) / trial.passes
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(comm.allreduce(total.item()) / comm.size)
        seconds.append(time.perf_counter() - began)
        tell(comm.rank, "FSDP2", losses, seconds)
    return losses, seconds, torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
