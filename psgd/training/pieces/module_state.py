"""The state dict of a PyTorch module in pieces in one file, gathered one tensor at a time."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from mpi4py import MPI

from psgd.runtime.agreement import gather
from psgd.torch.pieces.whole_state import StatePiece, pieces
from psgd.training.gathered import write_pieces


def write(target: Path, module: torch.nn.Module, names: Sequence[str], comm: MPI.Intracomm, what: str) -> None:
    """Rank 0 writes all tensors of the whole; it has one of them at a time. Collective, blocks.

    Args:
        target: an `.npz` or `.pt` file.
        module: this rank's layers.
        names: of the whole's state dict, in its order.
        comm: the ranks that hold one copy together.
        what: the option, for messages.

    Raises:
        UsageError: on rank 0, if it cannot be written; the others have sent their parts.
    """
    mine = pieces(module)
    told = [
        [each.name, str(each.tensor.dtype), list(each.shape), list(each.start), list(each.tensor.shape)]
        for each in mine
    ]
    everyone = [answer["pieces"] for answer in gather(comm, {"pieces": told})]
    write_pieces(target, _whole(mine, names, comm, everyone), comm, what)


def _whole(
    mine: Sequence[StatePiece], names: Sequence[str], comm: MPI.Intracomm, everyone: Sequence[Sequence[Any]]
) -> Iterator[tuple[str, Any]]:
    """On rank 0 each tensor, whole; on other ranks nothing, but they send."""
    holders: dict[str, list[tuple[int, int]]] = {}
    seen = set()
    for rank, told in enumerate(everyone):
        for number, (name, _, _, start, extents) in enumerate(told):
            if (name, *start, *extents) not in seen:
                seen.add((name, *start, *extents))
                holders.setdefault(name, []).append((rank, number))
    own = comm.Get_rank()
    for name in names:
        whole = None
        for rank, number in holders[name]:
            _, kind, shape, start, extents = everyone[rank][number]
            if own == 0:
                dtype = getattr(torch, kind.removeprefix("torch."))
                whole = torch.empty(shape, dtype=dtype) if whole is None else whole
                part = mine[number].tensor if rank == 0 else torch.empty(extents, dtype=dtype)
                if rank and part.numel():
                    comm.Recv(_bytes(part), rank)
                whole[tuple(slice(at, at + extent) for at, extent in zip(start, extents, strict=True))] = part
            elif rank == own and mine[number].tensor.numel():
                comm.Send(_bytes(mine[number].tensor.cpu().contiguous()), 0)
        if whole is not None:
            yield name, whole


def _bytes(tensor: torch.Tensor) -> Any:
    """A contiguous tensor's memory on the host."""
    return tensor.reshape(-1).view(torch.uint8).numpy()
