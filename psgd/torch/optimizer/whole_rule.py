"""A rule that is not elementwise (Muon, Adafactor, a user's own), which needs each parameter whole and in its shape."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from psgd.kernels.errors import UsageError
from psgd.optim.rules import Rule, State
from psgd.runtime.device_vectors import on_device
from psgd.torch.optimizer.group_settings import GroupSettings
from psgd.torch.parameters import Slot
from psgd.torch.same_memory import tensor_of

Vector = NDArray[np.floating]
States = Mapping[torch.Tensor, Mapping[str, Any]]


class WholeRule:
    """The rule of an optimizer of any kind, on workers that have the whole vector. The state is PyTorch's alone.

    Args:
        optimizer: the user's, whose groups' options are read at each step.
        slots: of the parameters in the vector.
        own: a vector of the same size and dtype.
        settings: of the groups.
        loaded: state to start from, by parameter.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        slots: Sequence[Slot],
        own: Vector,
        settings: GroupSettings,
        loaded: States,
    ) -> None:
        self._source, self._slots, self._size, self._settings = optimizer, slots, own.size, settings
        self._loaded = loaded
        self._twin: torch.optim.Optimizer | None = None
        self._parameters: dict[Slot, torch.nn.Parameter] = {}
        self._scratch = np.empty_like(own)
        self.rule = Rule(f"torch.{type(optimizer).__name__}", lambda params: (), self._update, settings=settings)

    def lies_in(self, own: Vector) -> None:
        """It works on a whole vector, whichever that is."""

    def state_of(self, slot: Slot) -> dict[str, Any] | None:
        """One parameter's state, None before the first step."""
        if self._twin is None:
            return None
        return dict(self._twin.state.get(self._parameters[slot], {})) or None

    def _update(self, params: Vector, grad: Vector, state: State, lr: float, scale: float, step: int) -> None:
        if not params.size:
            return
        looks = self._settings.guarded or not on_device(grad)  # a look at a GPU waits for it
        if looks and np.isnan(grad[0]) and bool(np.isnan(grad).all()):
            self._settings.skipped += 1
            return
        if self._twin is None:
            self._twin = self._begin(params)
        np.multiply(grad, grad.dtype.type(scale), out=self._scratch)
        for options, group in zip(self._twin.param_groups, self._source.param_groups, strict=True):
            options.update({name: value for name, value in group.items() if name != "params"})
        self._twin.step()

    def _begin(self, params: Vector) -> torch.optim.Optimizer:
        """The same optimizer once more, on parameters that are views of the vector."""
        vector, gradient = tensor_of(params), tensor_of(self._scratch)
        if params.size != self._size:
            raise UsageError(f"DistributedOptimizer: expected the whole vector, got {params.size} elements")
        by_id: dict[int, torch.nn.Parameter] = {}
        for slot in self._slots:
            mine = torch.nn.Parameter(slot.of(vector))
            mine.grad = slot.of(gradient)
            by_id[id(slot.parameter)] = self._parameters[slot] = mine
        twin = object.__new__(type(self._source))
        # What a scheduler has put around the user's `step` is an attribute of the instance.
        twin.__dict__.update({name: value for name, value in vars(self._source).items() if name != "step"})
        twin.state = defaultdict(dict)
        twin.param_groups = [
            group | {"params": [by_id[id(p)] for p in group["params"] if id(p) in by_id]}
            for group in self._source.param_groups
        ]
        for slot, mine in self._parameters.items():
            if state := self._loaded.get(slot.parameter):
                twin.state[mine] = {
                    key: value.detach().clone() if isinstance(value, torch.Tensor) else value
                    for key, value in state.items()
                }
        return twin
