"""What of a module is whole at once: the parameters of one block, or a run of those between the blocks."""

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from psgd.kernels.errors import UsageError
from psgd.torch.parameters import Slot

Asked = Callable[[str, torch.nn.Module], bool] | Sequence[Any] | None
"""Which modules are blocks: a function of name and module, or patterns of names and classes; None: by containers."""

CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)


@dataclass(frozen=True, eq=False)
class Unit:
    """Adjacent parameters of one owner.

    Attributes:
        index: in the order of the vector.
        owner: name of the block; "" for parameters outside of all.
        part: its range of the vector, with the padding behind it.
        slots: its parameters.
    """

    index: int
    owner: str
    part: range
    slots: tuple[Slot, ...]

    def __repr__(self) -> str:
        return f"unit {self.index} ({self.owner or 'outside of blocks'}: {self.slots[0].name} ...)"


@dataclass(frozen=True)
class UnitPlan:
    """A module's units, and who needs which.

    Attributes:
        units: in the order of the vector.
        owners: names of the blocks, and of the module itself, "", with the numbers of the units that are whole while
            they run.
        users: the same of the other modules that have parameters of their own.
    """

    units: tuple[Unit, ...]
    owners: dict[str, tuple[int, ...]]
    users: dict[str, tuple[int, ...]]

    def alone(self) -> set[int]:
        """Units that are used beside others: those outside of blocks, and those that several blocks use."""
        found = {unit.index for unit in self.units if not unit.owner}
        for numbers in self.owners.values():
            if len(numbers) > 1:
                found |= set(numbers)
        return found


def plan(module: torch.nn.Module, slots: Sequence[Slot], size: int, asked: Asked = None) -> UnitPlan:
    """Cuts a module's vector into units.

    Args:
        module: the module.
        slots: its trainable parameters, in the order of the vector.
        size: of the vector.
        asked: which modules are blocks.

    Raises:
        UsageError: `asked` is no such thing, or names a module that does not exist.
    """
    blocks = _blocks(module, asked)
    runs: list[tuple[str, list[Slot]]] = []
    for slot in slots:
        owner = _owner(slot.name, blocks)
        if not runs or runs[-1][0] != owner:
            runs.append((owner, []))
        runs[-1][1].append(slot)
    starts = [0, *(members[0].offset for _, members in runs[1:]), size]
    units = tuple(
        Unit(index, owner, range(starts[index], starts[index + 1]), tuple(members))
        for index, (owner, members) in enumerate(runs)
    )
    unit_of = {id(slot.parameter): unit.index for unit in units for slot in unit.slots}
    owners = {"": _needs(module, "", blocks, unit_of)}
    users: dict[str, tuple[int, ...]] = {}
    for name, part in module.named_modules():
        if not name:
            continue
        if name in blocks:
            owners[name] = _needs(part, name, blocks, unit_of)
        elif own := _numbers(part.parameters(recurse=False), unit_of):
            users[name] = own
    return UnitPlan(units, owners, users)


def _blocks(module: torch.nn.Module, asked: Asked) -> set[str]:
    named = [(name, part) for name, part in module.named_modules() if name]
    if asked is None:
        return set(_in_containers(module, ""))
    if callable(asked) and not isinstance(asked, type):
        return {name for name, part in named if asked(name, part)}
    if isinstance(asked, (str, type)) or not isinstance(asked, Sequence):
        raise UsageError(
            "psgd.torch.shard: units: expected a list of names of modules (with * for any) and classes, or a function "
            f"of name and module, got {asked!r}"
        )
    found: set[str] = set()
    for each in asked:
        if isinstance(each, type):
            mine = {name for name, part in named if isinstance(part, each)}
        elif isinstance(each, str):
            mine = set(fnmatch.filter([name for name, _ in named], each))
        else:
            raise UsageError(f"psgd.torch.shard: units: expected names of modules and classes, got {each!r}")
        if not mine:
            what = each if isinstance(each, str) else each.__name__
            raise UsageError(
                f"psgd.torch.shard: units: expected modules of the model, got {what!r}, which matches none"
            )
        found |= mine
    return found


def _in_containers(module: torch.nn.Module, prefix: str) -> Iterator[str]:
    """The direct members of all lists and sequences that are not in a member themselves."""
    for key, part in module.named_children():
        name = f"{prefix}{key}"
        if isinstance(part, CONTAINERS) or not isinstance(module, CONTAINERS):
            yield from _in_containers(part, f"{name}.")
        elif any(p.requires_grad for p in part.parameters()):
            yield name


def _owner(name: str, blocks: set[str]) -> str:
    """The innermost block that has this parameter."""
    parent = name.rpartition(".")[0]
    while parent and parent not in blocks:
        parent = parent.rpartition(".")[0]
    return parent


def _needs(module: torch.nn.Module, prefix: str, blocks: set[str], unit_of: dict[int, int]) -> tuple[int, ...]:
    """Units of all parameters that are not in a block further inside; tied ones may be another block's."""
    found = set(_numbers(module.parameters(recurse=False), unit_of))
    for key, part in module.named_children():
        name = f"{prefix}.{key}" if prefix else key
        if name not in blocks:
            found |= set(_needs(part, name, blocks, unit_of))
    return tuple(sorted(found))


def _numbers(parameters: Iterator[torch.nn.Parameter], unit_of: dict[int, int]) -> tuple[int, ...]:
    return tuple(sorted({unit_of[id(p)] for p in parameters if id(p) in unit_of}))
