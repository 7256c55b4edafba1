"""Where one unit's parameters are: whole in one piece of memory, or nowhere but in the ranks' own vectors."""

from dataclasses import dataclass

import torch

from psgd.torch.sharded.module_units import Unit


@dataclass(frozen=True)
class Saved:
    """What a graph keeps in place of a tensor over a unit's memory, which is gathered again for backward.

    Attributes:
        unit: its index.
        slot: number in the unit of a parameter that has memory of its own; None: the unit's memory.
        dtype, size, stride, offset: of the tensor.
    """

    unit: int
    slot: int | None
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Residence:
    """One unit's parameters.

    While they are nowhere, each has its shape and dtype still, and reads as NaN: to use one outside of its unit's
    forward pass then shows, and harms nothing.

    Args:
        unit: whose parameters these are.

    Attributes:
        values: all elements of the unit while it is whole, else None.
    """

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.values: torch.Tensor | None = None
        self._nothing: list[torch.Tensor] = []
        for slot in unit.slots:
            p = slot.parameter
            nothing = torch.full((), torch.nan, dtype=p.dtype, device=p.device)
            self._nothing.append(nothing.expand(p.shape))
        self._rounded: list[torch.Tensor | None] = [None] * len(unit.slots)

    def enter(self, values: torch.Tensor) -> None:
        """From now on the parameters are views of these elements; those of few bits are rounded from them."""
        self.values = values
        for index, slot in enumerate(self.unit.slots):
            view = self.view(index, values)
            if slot.reduced:
                view = self._rounded[index] = view.to(slot.parameter.dtype)
            slot.parameter.data = view

    def round(self) -> None:
        """The elements have changed: parameters of few bits are rounded from them again."""
        for index, rounded in enumerate(self._rounded):
            if rounded is not None and self.values is not None:
                rounded.copy_(self.view(index, self.values))

    def leave(self) -> None:
        """The parameters are nowhere; their memory goes with the last reference to it."""
        self.values = None
        self._rounded = [None] * len(self.unit.slots)
        for slot, nothing in zip(self.unit.slots, self._nothing, strict=True):
            slot.parameter.data = nothing

    def view(self, slot: int, flat: torch.Tensor) -> torch.Tensor:
        """One parameter's elements of a vector over the unit, in its shape."""
        at = self.unit.slots[slot]
        start = self.unit.part.start
        return flat[at.offset - start : at.stop - start].view(at.parameter.shape)

    def places(self) -> dict[int, tuple[int, int | None]]:
        """By address of a piece of memory that the parameters are in now, the unit and the slot, if it is one's own."""
        if self.values is None:
            return {}
        found: dict[int, tuple[int, int | None]] = {_address(self.values): (self.unit.index, None)}
        for index, tensor in enumerate(self._rounded):
            if tensor is not None:
                found[_address(tensor)] = (self.unit.index, index)
        return found

    def restored(self, saved: Saved) -> torch.Tensor:
        """The tensor again that a graph had; the unit is whole."""
        base = self.values if saved.slot is None else self._rounded[saved.slot]
        assert base is not None
        if base.dtype != saved.dtype:
            base = base.view(saved.dtype)
        return base.as_strided(saved.size, saved.stride, saved.offset)


def saved(tensor: torch.Tensor, where: tuple[int, int | None]) -> Saved:
    """What to keep in place of a tensor over a unit's memory."""
    unit, slot = where
    return Saved(unit, slot, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())
