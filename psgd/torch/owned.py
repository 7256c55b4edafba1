"""Which trained parameters are part of a model of psgd already: nobody else may put them elsewhere."""

import weakref
from collections.abc import Iterable

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from psgd.kernels.errors import UsageError

_OWNERS = WeakTensorKeyDictionary()
"""By trainable parameter, a weak reference to what it is part of."""


def check(module: torch.nn.Module) -> None:
    """Refuses a module of which a parameter is taken.

    Raises:
        UsageError: one is.
    """
    for name, parameter in module.named_parameters():
        owner = _OWNERS[parameter]() if parameter in _OWNERS else None
        if hasattr(owner, "sharding"):
            raise UsageError(
                f"psgd.torch.wrap: {name} is part of a sharded module already: hand what psgd.torch.shard has returned "
                "to psgd.connect, whose rules take the steps"
            )
        if owner is not None:
            raise UsageError(f"psgd.torch.wrap: {name} is part of a wrapped module already: wrap a module once")


def take(parameters: Iterable[torch.Tensor], owner: object) -> None:
    """They are part of this, as long as it exists."""
    for parameter in parameters:
        _OWNERS[parameter] = weakref.ref(owner)
