"""A sharded module that each rank has whole: where only the optimizer's state is shared out, or there is one rank."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from psgd.torch.sharded import first_values
from psgd.torch.sharded.examined import Checked
from psgd.torch.wrapped import Wrapped


class WholeModule(Wrapped):
    """Stage 1 of `psgd.torch.shard`, and all stages on one rank: a wrapped module with the same methods.

    Args:
        checked: the module.
        ranks: how many.

    Attributes:
        sharding: the stage, for `psgd.connect`.
    """

    def __init__(self, checked: Checked, ranks: int) -> None:
        module, owners = checked.module, checked.plan.owners
        if checked.meta:
            for unit in checked.plan.units:
                for slot in unit.slots:
                    slot.parameter.data = torch.empty_like(slot.parameter, memory_format=torch.contiguous_format)
            for number, owner in enumerate(owners):
                parts = first_values.parts_of(module, owner, set(owners))
                first_values.fill(parts, checked.init, checked.seed, number)
        super().__init__(module, checked.kept.mode)
        self.sharding = int(ranks > 1)
        self._rank = checked.rank

    def state_dict(self, rank: int | None = 0) -> dict[str, torch.Tensor]:
        """The module's on the CPU, on one rank or (None) on all; elsewhere empty."""
        if rank not in (None, self._rank):
            return {}
        return {name: tensor.detach().cpu().clone() for name, tensor in self.module.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor] | None) -> None:
        """Gives the module these values; where there are none, it gets the first rank's when training begins."""
        if state is not None:
            self.module.load_state_dict(state)

    @contextmanager
    def gathered(self) -> Iterator[torch.nn.Module]:
        """All parameters are whole, as they are always."""
        yield self.module

    def close(self) -> None:
        """Frees nothing."""

    def __enter__(self) -> "WholeModule":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
