"""PyTorch's optimizer on one part of the vector."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from psgd.torch.same_memory import tensor_of

Vector = NDArray[np.floating]


class Stretch(NamedTuple):
    """Elements `start` to `stop` of the vector, which are of one parameter group."""

    start: int
    stop: int
    group: int


class Piece:
    """An optimizer of the user's class whose parameters are ranges of one part.

    Args:
        optimizer: the user's, whose groups have the options.
        runs: of the vector.
        first: the part's first element in the vector.
        params: the part.
        scratch: of its size, for gradients; others use it between steps.
        states: by group, what state the rule keeps: arrays, and a number of steps.
        groups: whose options count; None: the optimizer's.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        runs: Sequence[Stretch],
        first: int,
        params: Vector,
        scratch: Vector,
        states: Sequence[Mapping[str, torch.Tensor]],
        groups: Sequence[dict[str, Any]] | None = None,
    ) -> None:
        self._source, self._own_groups, self._scratch, self._states = optimizer, groups, scratch, states
        self._chunks: list[tuple[torch.nn.Parameter, int, int, int]] = []
        for run in runs:
            start, stop = max(run.start - first, 0), min(run.stop - first, params.size)
            if start < stop:
                parameter = torch.nn.Parameter(tensor_of(params[start:stop]))
                parameter.grad = tensor_of(scratch[start:stop])
                self._chunks.append((parameter, run.group, start, stop))
        self._used = sorted({group for _, group, _, _ in self._chunks})
        kind = type(optimizer)
        known = inspect.signature(kind.__init__).parameters
        defaults = {name: value for name, value in optimizer.defaults.items() if name in known}
        self._optimizer: torch.optim.Optimizer = kind(
            [
                {"params": [p for p, index, _, _ in self._chunks if index == group], **self._options(group)}
                for group in self._used
            ],
            **defaults,
        )
        self._ready = False

    def step(self, grad: Vector, scale: float, taken: int, arrays: Mapping[str, Vector]) -> None:
        """One step with the gradient `scale * grad`.

        Args:
            grad: of the part.
            scale: of it.
            taken: steps before.
            arrays: the rule's state of the part, by name; kept for later steps.
        """
        np.multiply(grad, grad.dtype.type(scale), out=self._scratch)
        for options, group in zip(self._optimizer.param_groups, self._used, strict=True):
            options.update(self._options(group))
        # PyTorch makes the first state itself, from the first gradient; after that it lies in the arrays.
        if not self._ready and taken:
            self._adopt(arrays)
        for parameter, _, _, _ in self._chunks:
            state = self._optimizer.state.get(parameter, {})
            if "step" in state:
                state["step"].fill_(taken)
        self._optimizer.step()
        if not self._ready:
            self._keep(arrays)
            self._adopt(arrays)
            self._ready = True

    def trial(self) -> dict[str, torch.Tensor]:
        """One step with the gradient in `scratch`: the state of the first range afterwards."""
        self._optimizer.step()
        state = self._optimizer.state[self._chunks[0][0]]
        return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}

    def _options(self, group: int) -> dict[str, Any]:
        groups = self._source.param_groups if self._own_groups is None else self._own_groups
        options = {name: groups[group][name] for name in self._source.defaults if name in groups[group]}
        lr = options["lr"]
        return options | {"lr": float(lr) if isinstance(lr, torch.Tensor) else lr}

    def _adopt(self, arrays: Mapping[str, Vector]) -> None:
        """Makes the optimizer's state views of the arrays."""
        for parameter, group, start, stop in self._chunks:
            state = self._optimizer.state[parameter]
            for name, like in self._states[group].items():
                state[name] = tensor_of(arrays[name][start:stop]) if like.shape else like.clone()

    def _keep(self, arrays: Mapping[str, Vector]) -> None:
        for parameter, group, start, stop in self._chunks:
            state = self._optimizer.state[parameter]
            for name, like in self._states[group].items():
                if like.shape and arrays[name].size:
                    tensor_of(arrays[name][start:stop]).copy_(state[name].detach())
