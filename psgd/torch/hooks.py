"""Communication hooks for PyTorch's DistributedDataParallel: its buckets are averaged by our all-reduce.

    comm = psgd.collectives.Communicator(MPI.COMM_WORLD)
    model = DistributedDataParallel(module)
    model.register_comm_hook(comm, psgd.torch.allreduce_hook)

A bucket is reduced where it lies. DDP calls its hook for one bucket after the other, in the same order on all ranks.
Where a progress thread carries out non-blocking calls, backward goes on meanwhile, and the hook of the last bucket
waits for all: so that an error of any bucket is raised from there, by `backward`, as PyTorch's futures cannot tell it.
Buckets on a GPU are reduced there, one after the other, on the stream on which DDP made them: where GPUs are peers,
the host does not wait, and an error is raised by a later bucket's hook.
"""

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from mpi4py import MPI
from torch import distributed as dist

from psgd.collectives import MEAN, Communicator, Request
from psgd.kernels.errors import UsageError
from psgd.torch.group_match import matched
from psgd.torch.parameters import DEVICES


class _Pending(NamedTuple):
    """A bucket that is being reduced; `then` puts the result in its place."""

    request: Request
    future: torch.futures.Future[torch.Tensor]
    buffer: torch.Tensor
    then: Callable[[], object] | None


_PENDING: "weakref.WeakKeyDictionary[Communicator, list[_Pending]]" = weakref.WeakKeyDictionary()


def allreduce_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket, as DDP does without a hook.

    Args:
        state: a `psgd.collectives.Communicator` whose ranks are those of the default process group, in the same order;
            or a pair of a communicator and the process group that DDP was given.
        bucket: DDP's.

    Raises:
        UsageError: a state, a process group or a bucket that it cannot be used with.
        ContractError: the ranks' buckets differ; on all ranks, as are all errors of `Communicator`.
    """
    comm, buffer = matched(state), dense(bucket)
    return _start(comm, bucket, buffer, buffer, MEAN)


def fp16_compress_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """As `allreduce_hook`, with the gradient sent as float16: half the bytes. It is divided before it is summed."""
    return _rounded(matched(state), bucket, torch.float16)


def bf16_compress_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """As `allreduce_hook`, with the gradient sent as bfloat16: half the bytes. It is divided before it is summed."""
    return _rounded(matched(state), bucket, torch.bfloat16)


bf16_compress_hook.__name__ = "psgd_bf16_compress_hook"  # DDP refuses PyTorch's own, by name, where there is no NCCL


def dense(bucket: dist.GradBucket) -> torch.Tensor:
    """A bucket's gradients, 1-D and contiguous, in memory that is the bucket's.

    Raises:
        UsageError: they are not dense real numbers on the CPU or a GPU.
    """
    buffer = bucket.buffer()
    if buffer.layout != torch.strided or buffer.device.type not in DEVICES or buffer.is_complex():
        raise UsageError(
            f"psgd.torch: a hook expected a bucket of dense real gradients on the CPU or a GPU, got {buffer.dtype}, "
            f"{buffer.layout} on {buffer.device}: leave the hook away, or use psgd.torch.wrap"
        )
    return buffer.detach()


def completed(buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """A future that has its result."""
    devices = [] if buffer.device.type == "cpu" else [buffer.device]
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
    future.set_result(buffer)
    return future


def _rounded(comm: Communicator, bucket: dist.GradBucket, dtype: torch.dtype) -> torch.futures.Future[torch.Tensor]:
    buffer = dense(bucket)
    sent = buffer if buffer.dtype == dtype else buffer.to(dtype)
    sent.div_(comm.size)
    then = None if sent is buffer else lambda: buffer.copy_(sent)
    return _start(comm, bucket, buffer, sent, MPI.SUM, then)


def _start(
    comm: Communicator,
    bucket: dist.GradBucket,
    buffer: torch.Tensor,
    sent: torch.Tensor,
    op: Any,
    then: Callable[[], object] | None = None,
) -> torch.futures.Future[torch.Tensor]:
    """Reduces `sent` in place; `then` puts it into `buffer`, if it is not the same."""
    on_host = sent.device.type == "cpu"
    array = sent.numpy() if on_host and sent.dtype in (torch.float32, torch.float64) else sent
    if not comm.threaded or not on_host:
        reduce = comm.Allreduce if on_host else comm.Allreduce_enqueue
        reduce(MPI.IN_PLACE, array, op)
        if then is not None:
            then()
        return completed(buffer)
    pending = _PENDING.setdefault(comm, [])
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    pending.append(_Pending(comm.Iallreduce(MPI.IN_PLACE, array, op), future, buffer, then))
    if bucket.is_last():
        _finish(pending)
    return future


def _finish(pending: list[_Pending]) -> None:
    """Waits for all, in order."""
    mine = pending[:]
    pending.clear()
    for each in mine:
        each.request.Wait()
        if each.then is not None:
            each.then()
        each.future.set_result(each.buffer)
