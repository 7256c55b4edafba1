"""What the PyTorch peers of `psgd bench train` do besides on a GPU, and leave on the host.

All data lies on the GPU, normalized, as psgd's does; the SGD step is PyTorch's fused one; what is slow the first time
is done before the clock starts. NCCL does without NVLink multicast where `NCCL_NVLS_ENABLE=0` says so.
"""

import copy
import dataclasses
from collections.abc import Callable

import torch
from torch import nn

from psgd.kernels.memory.gc_paused import gc_paused
from psgd.launch.bench.peers.torch_job import TrainJob

_WARM_UP_STEPS = 11


def moved(job: TrainJob, rank: int) -> TrainJob:
    """The job with its data on the GPU of a rank, where that is asked for; its model stays where it is."""
    if job.options.device == "cpu":
        return job
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    x, y, test = job.x.to(device), job.y.to(device), (job.test[0].to(device), job.test[1].to(device))
    here = dataclasses.replace(job, x=x, y=y, test=test)
    if job.options.name != "ddp":
        job.model.to(device)
        warm_up(job.model, here)
    return here


def sgd(model: nn.Module, job: TrainJob) -> torch.optim.SGD:
    """The optimizer, in its fastest form on that device."""
    return torch.optim.SGD(model.parameters(), lr=job.options.lr, fused=True if job.x.is_cuda else None)


def warm_up(model: nn.Module, job: TrainJob) -> None:
    """Takes steps that are then undone, on a GPU. With DDP all ranks have to."""
    if not job.x.is_cuda:
        return
    saved = copy.deepcopy(model.state_dict())
    optimizer = sgd(model, job)
    batch = torch.arange(min(job.options.batch_size, len(job.y)), device=job.x.device)
    for _ in range(_WARM_UP_STEPS):
        _step(model, optimizer, job, batch)
    model.load_state_dict(saved)
    torch.cuda.synchronize()


def captured(model: nn.Module, job: TrainJob) -> Callable[[torch.Tensor], None]:
    """A whole step as a CUDA graph, to be called with the indices of a full batch."""
    rows = torch.arange(job.options.batch_size, device=job.x.device)
    saved = copy.deepcopy(model.state_dict())
    optimizer = sgd(model, job)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP_STEPS):
            _step(model, optimizer, job, rows)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with gc_paused(), torch.cuda.graph(graph):
        _step(model, optimizer, job, rows)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            value.copy_(saved[name])

    def replay(batch: torch.Tensor) -> None:
        rows.copy_(batch)
        graph.replay()

    return replay


def _step(model: nn.Module, optimizer: torch.optim.SGD, job: TrainJob, batch: torch.Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    nn.functional.cross_entropy(model(job.x.index_select(0, batch)), job.y.index_select(0, batch)).backward()
    optimizer.step()
