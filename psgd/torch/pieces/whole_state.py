"""What a rank has of the state dict of the whole module: tensors and parts of them, under their names there."""

from dataclasses import dataclass

import torch

from psgd.nn.layer import Shape
from psgd.torch.pieces.cut_heads import HeadsModule
from psgd.torch.pieces.cut_linears import CutWeights


@dataclass(frozen=True, eq=False)
class StatePiece:
    """A tensor of the whole, or what is here of it.

    Attributes:
        name: in the whole's state dict.
        tensor: on the CPU or a GPU.
        shape: of the whole tensor.
        start: where in it this one begins, along each axis.
    """

    name: str
    tensor: torch.Tensor
    shape: Shape
    start: Shape


def pieces(module: torch.nn.Module) -> list[StatePiece]:
    """Lists them, in the order of the module's own state dict.

    Args:
        module: some layers of a whole, by their names there, and perhaps cut by tensor.
    """
    places: dict[str, tuple[Shape, Shape]] = {}
    renamed: dict[str, tuple[str, int, int]] = {}
    for prefix, part in module.named_modules():
        before = f"{prefix}." if prefix else ""
        if isinstance(part, CutWeights):
            places |= {before + name: place for name, place in part.parts().items()}
        if isinstance(part, HeadsModule):
            renamed |= {before + own: (before + name, at, of) for own, (name, at, of) in part.in_whole().items()}
    found = []
    for own, tensor in module.state_dict().items():
        if not isinstance(tensor, torch.Tensor):
            continue
        shape, start = places.get(own, (tuple(tensor.shape), (0,) * tensor.ndim))
        name, first, rows = renamed.get(own, (own, 0, shape[0] if shape else 0))
        if own in renamed:
            shape, start = (rows, *shape[1:]), (first + start[0], *start[1:])
        found.append(StatePiece(name, tensor.detach(), shape, start))
    return found
