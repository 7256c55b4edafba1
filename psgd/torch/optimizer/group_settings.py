"""The options of a `torch.optim` optimizer that a scheduler may change, as numbers that travel with a push."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from psgd.kernels.errors import UsageError

Group = dict[str, Any]


class GroupSettings:
    """A `psgd.optim.rules.Settings` of parameter groups: learning rates, momenta, weight decay.

    Args:
        optimizer: whose groups they are, on every rank its own.
        alike: all groups must have one learning rate, and nothing else may change: the rule is psgd's.

    Attributes:
        size: of the numbers; see there.
        skipped: steps left out; see there.
        guarded: whether a `GradScaler` has been seen, so that a gradient without numbers is a step to leave out.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, alike: bool) -> None:
        self._optimizer = optimizer
        self._names = sorted(name for name in optimizer.defaults if name != "params")
        self._shape = [self._numbers(group) for group in optimizer.param_groups]
        self._fixed = [self._others(group) for group in optimizer.param_groups]
        self._alike = alike
        first = optimizer.param_groups[0]
        self._begun = {name: first[name] for name in ("momentum", "weight_decay") if name in first}
        self.size = 1 + len(self._values())
        self.skipped, self.guarded = 0, False

    @property
    def lr(self) -> float:
        """The first group's."""
        return float(self._optimizer.param_groups[0]["lr"])

    def write(self, into: NDArray[np.float64]) -> None:
        """See `psgd.optim.rules.Settings`.

        Raises:
            UsageError: something has changed that does not travel.
        """
        self._check()
        into[0] = self.guarded
        into[1:] = self._values()

    def values(self) -> NDArray[np.float64]:
        """What `write` writes, unchecked."""
        return np.array([self.guarded, *self._values()], np.float64)

    def read(self, values: NDArray[np.float64]) -> None:
        self.guarded = bool(values[0])
        numbers = iter(values[1:].tolist())
        for group, names in zip(self._optimizer.param_groups, self._shape, strict=True):
            for name in names:
                old = group[name]
                if isinstance(old, tuple):
                    group[name] = tuple(type(each)(next(numbers)) for each in old)
                elif isinstance(old, torch.Tensor):
                    old.fill_(next(numbers))
                else:
                    group[name] = next(numbers)

    def _numbers(self, group: Group) -> list[str]:
        return [name for name in self._names if all(map(_is_number, _parts(group[name])))]

    def _others(self, group: Group) -> dict[str, Any]:
        return {name: group[name] for name in self._names if name not in self._numbers(group)}

    def _values(self) -> list[float]:
        return [
            float(value)
            for group, names in zip(self._optimizer.param_groups, self._shape, strict=False)
            for name in names
            for value in _parts(group[name])
        ]

    def _check(self) -> None:
        groups = self._optimizer.param_groups
        if len(groups) != len(self._shape):
            raise _wrong("parameter groups", f"{len(self._shape)} as at the start", len(groups), "add them before")
        for index, (group, fixed) in enumerate(zip(groups, self._fixed, strict=True)):
            for name, value in fixed.items():
                if group[name] is not value and group[name] != value:
                    raise _wrong(f"group {index}: {name}", f"{value!r} as at the start", group[name], "set it before")
        if not self._alike:
            return
        lr = self.lr
        for index, group in enumerate(groups):
            if float(group["lr"]) != lr:
                raise _wrong(
                    f"group {index}: lr",
                    f"{lr:g} as in group 0, since updates are encoded before the rule",
                    group["lr"],
                    "use one learning rate, or no compression and another strategy than decentralized",
                )
            for name, first in self._begun.items():
                if group[name] != first:
                    raise _wrong(f"group {index}: {name}", f"{first:g} as at the start", group[name], "keep it")


def _wrong(what: str, expected: str, got: object, fix: str) -> UsageError:
    return UsageError(f"DistributedOptimizer: {what}: expected {expected}, got {got}: {fix}")


def _parts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _is_number(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return bool(value.numel() == 1)
    return isinstance(value, (int, float)) and not isinstance(value, bool)
