"""The hooks of a sharded module: its units are whole while what has them runs, forward and backward."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.hooks import RemovableHandle

from psgd.torch.sharded.keeper import Keeper
from psgd.torch.sharded.module_units import UnitPlan


class PassHooks:
    """Puts hooks on a module, until `remove`.

    Args:
        module: the module.
        plan: its units.
        keeper: of them.
    """

    def __init__(self, module: torch.nn.Module, plan: UnitPlan, keeper: Keeper) -> None:
        self._keeper = keeper
        self._hooks: list[RemovableHandle] = []
        self._packing: list[Any] = []  # what was entered and is to be left, the newest last
        for owners, before, after in ((plan.owners, self._before, self._after), (plan.users, self._hold, self._drop)):
            for name, units in owners.items():
                part = module.get_submodule(name)
                # Before hooks of others, which may use the parameters, and after them.
                self._hooks.append(part.register_forward_pre_hook(partial(before, units), prepend=True))
                self._hooks.append(part.register_forward_hook(partial(after, units), always_call=True))

    def remove(self) -> None:
        """Takes the hooks away."""
        while self._hooks:
            self._hooks.pop().remove()

    def _before(self, units: tuple[int, ...], module: torch.nn.Module, args: Any) -> None:
        packing = saved_tensors_hooks(self._keeper.pack, self._keeper.unpack)
        packing.__enter__()
        self._packing.append(packing)
        self._keeper.hold(units)

    def _after(self, units: tuple[int, ...], module: torch.nn.Module, args: Any, output: Any) -> None:
        self._packing.pop().__exit__(None, None, None)
        if torch.is_grad_enabled():
            for tensor in _tensors(output):
                if tensor.grad_fn is not None:
                    tensor.register_hook(partial(self._use, units))
        self._drop(units, module, args, output)

    def _hold(self, units: tuple[int, ...], module: torch.nn.Module, args: Any) -> None:
        self._keeper.hold(units)

    def _drop(self, units: tuple[int, ...], module: torch.nn.Module, args: Any, output: Any) -> None:
        try:
            for tensor in _tensors(output):
                self._keeper.check_result(tensor)
        finally:
            self._keeper.drop(units)

    def _use(self, units: tuple[int, ...], gradient: torch.Tensor) -> None:
        for unit in units:
            self._keeper.use(unit)


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    """All tensors in what a module returned."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict):
        for each in output.values():
            yield from _tensors(each)
    elif isinstance(output, (list, tuple)):
        for each in output:
            yield from _tensors(each)
    elif hasattr(output, "__dataclass_fields__"):
        for key in output.__dataclass_fields__:
            yield from _tensors(getattr(output, key))
