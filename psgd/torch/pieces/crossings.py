"""Where cut modules begin and end, for autograd: one way nothing happens, the other way ranks' tensors are summed.

Also the random numbers of what lies between: of each rank its own, without a trace in the generator that they share.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from mpi4py import MPI

from psgd.collectives import Communicator
from psgd.torch.pieces.seeded import seeded

_FEW_BITS = (torch.float16, torch.bfloat16)


def enter(x: torch.Tensor, comm: Communicator) -> torch.Tensor:
    """Returns x, which all ranks have; its gradients are the ranks' summed. Collective in backward.

    It blocks there, but on GPUs that are peers, which put the sum on PyTorch's stream.
    """
    return _Enter.apply(x, comm)  # type: ignore[no-any-return]


def leave(x: torch.Tensor, comm: Communicator) -> torch.Tensor:
    """Returns the sum of the ranks' x; its gradient is that of each. Collective, blocks as `enter` does."""
    return _Leave.apply(x, comm)  # type: ignore[no-any-return]


class _Enter(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, comm: Communicator) -> torch.Tensor:
        ctx.comm = comm
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _summed(dy, ctx.comm), None


class _Leave(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, comm: Communicator) -> torch.Tensor:
        return _summed(x, comm)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None]:
        return dy, None


def _summed(x: torch.Tensor, comm: Communicator) -> torch.Tensor:
    """A new tensor with the sum; of numbers in few bits it is rounded once. On the meta device nothing is sent."""
    total = x.to(torch.float32 if x.dtype in _FEW_BITS else x.dtype, copy=True, memory_format=torch.contiguous_format)
    if not x.is_meta and comm.size > 1:
        if total.is_cuda:
            comm.Allreduce_enqueue(MPI.IN_PLACE, total.detach())
        else:
            comm.Allreduce(MPI.IN_PLACE, total.detach().numpy())
    return total.to(x.dtype)


@contextmanager
def own_draws(comm: Communicator, like: torch.Tensor, wanted: bool = True) -> Iterator[None]:
    """Random numbers in the block differ between ranks; the generators go on alike on all, however much is drawn.

    Args:
        comm: the ranks.
        like: on the device where they are drawn.
        wanted: False: nothing is drawn.
    """
    if not wanted:
        yield
        return
    with seeded(int(torch.randint(2**62, ())) + comm.rank, like.device):
        yield


class OwnDraws(torch.nn.Module):  # type: ignore[misc]
    """A module between the cut ones, as a dropout, that draws of each rank's own.

    Args:
        inner: the module.
        comm: the ranks.
    """

    def __init__(self, inner: torch.nn.Module, comm: Communicator) -> None:
        super().__init__()
        self.inner, self.comm = inner, comm

    def forward(self, x: torch.Tensor) -> Any:
        """What the module gives."""
        with own_draws(self.comm, x, self.training and not x.is_meta):
            return self.inner(x)
