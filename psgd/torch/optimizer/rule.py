"""A `torch.optim` rule on flat vectors: PyTorch's own optimizer works on views of whatever part it is given.

So the same rule takes its step on a server's segments, on a worker's whole vector, and on float32 copies of reduced
parameters. The state (momentum, Adam's means) lies in psgd's arrays, so that it is saved, averaged and resumed as that
of psgd's own rules.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from psgd.kernels.array import address
from psgd.kernels.errors import UsageError
from psgd.optim.rules import Rule, State
from psgd.runtime.device_vectors import on_device
from psgd.torch.optimizer.group_settings import GroupSettings
from psgd.torch.optimizer.piece import Piece, Stretch
from psgd.torch.parameters import Slot
from psgd.torch.same_memory import tensor_of

Vector = NDArray[np.floating]
States = Mapping[torch.Tensor, Mapping[str, Any]]

_ELEMENTWISE = ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adadelta", "Adamax", "RAdam", "Rprop")


def is_elementwise(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the rule takes each element by itself, with no state but arrays and the number of steps."""
    return any(type(optimizer) is getattr(torch.optim, name) for name in _ELEMENTWISE)


class ElementwiseRule:
    """The rule of an optimizer that is elementwise.

    Args:
        optimizer: the user's, whose groups' options are read at each step.
        slots: of the parameters in the vector.
        own: the whole vector of this rank, of which a server has a part; or one of the same size, where the rule works.
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
        self._optimizer, self._slots, self._own, self._settings = optimizer, slots, own, settings
        self._runs = runs(optimizer, slots, own.size)
        self._probed = [_probe(optimizer, group, own) for group in optimizer.param_groups]
        found = {key for state in self._probed for key, value in state.items() if value.shape}
        self._keys = sorted(found)
        self._loaded = loaded
        self._before = 0  # steps before this run, of a state that was loaded
        self._base, self._offset = 0, 0
        self._state: State = ()
        self._pieces: dict[tuple[int, int], Piece] = {}
        self._scratch = np.empty_like(own[:0])
        self._taken = 0
        self.rule = Rule(f"torch.{type(optimizer).__name__}", self._init, self._update, settings=settings)

    def lies_in(self, own: Vector) -> None:
        """What this rank works on is this vector, or a part of it. Called before the first step."""
        self._own = own

    def state_of(self, slot: Slot) -> dict[str, Any] | None:
        """One parameter's state as PyTorch has it, None before the first step.

        Raises:
            UsageError: it is on other ranks.
        """
        if not self._taken or (self._state and self._state[0].size < self._own.size):
            return None
        group = next(run.group for run in self._runs if run.start <= slot.offset < run.stop)
        state: dict[str, Any] = {}
        for key, like in self._probed[group].items():
            if like.shape:
                state[key] = slot.of(tensor_of(self._state[self._keys.index(key)])).clone()
            else:
                state[key] = torch.full_like(like, self._taken)
        return state

    def _init(self, params: Vector) -> State:
        whole = params.size == self._own.size
        self._base = address(params)
        self._offset = 0 if whole else (self._base - address(self._own)) // params.itemsize
        self._state = tuple(np.zeros_like(params) for _ in self._keys)
        self._pieces.clear()
        steps = {self._load(slot) for slot in self._slots} if self._loaded else {0}
        if len(steps) > 1:
            raise UsageError(
                f"DistributedOptimizer: expected a loaded state with the same steps for all parameters, got {steps}"
            )
        self._taken = self._before = steps.pop()
        return self._state

    def _load(self, slot: Slot) -> int:
        """Takes what lies here of one parameter's loaded state; returns its steps, at least 1 where it has any."""
        state = self._loaded.get(slot.parameter)
        if not state:
            return 0
        start, stop = max(slot.offset, self._offset), min(slot.stop, self._offset + self._size)
        for key, array in zip(self._keys, self._state, strict=True):
            value = state.get(key)
            if isinstance(value, torch.Tensor) and start < stop:
                flat = value.detach().reshape(-1)[start - slot.offset : stop - slot.offset]
                tensor_of(array[start - self._offset : stop - self._offset]).copy_(flat)
        return int(state.get("step", 1))

    @property
    def _size(self) -> int:
        return self._state[0].size if self._state else self._own.size

    def _update(self, params: Vector, grad: Vector, state: State, lr: float, scale: float, step: int) -> None:
        if not params.size:
            return
        settings, start = self._settings, address(params)
        # NaN throughout is how a worker whose GradScaler found an overflow says that nobody takes this step.
        whole = params.size == self._own.size and not on_device(params)  # a look at a GPU waits for it
        if (settings.guarded or whole) and np.isnan(grad[0]) and bool(np.isnan(grad).all()):
            settings.skipped += start == self._base
            return
        taken = step - 1 - settings.skipped + self._before
        self._taken = taken + 1
        key = start, params.size
        piece = self._pieces.get(key)
        if piece is None:
            first = self._offset + (start - self._base) // params.itemsize
            if self._scratch.size < params.size:
                self._scratch = np.empty_like(params)
            piece = Piece(self._optimizer, self._runs, first, params, self._scratch[: params.size], self._probed)
            self._pieces[key] = piece
        piece.step(grad, scale, taken, dict(zip(self._keys, state, strict=True)))


def runs(optimizer: torch.optim.Optimizer, slots: Sequence[Slot], size: int) -> list[Stretch]:
    """The vector's ranges of one group each; padding belongs to what lies before it."""
    groups = {id(p): index for index, group in enumerate(optimizer.param_groups) for p in group["params"]}
    found: list[Stretch] = []
    for slot, after in zip(slots, [*slots[1:], None], strict=True):
        stop = size if after is None else after.offset
        group = groups[id(slot.parameter)]
        if found and found[-1].group == group:
            found[-1] = Stretch(found[-1].start, stop, group)
        else:
            found.append(Stretch(slot.offset, stop, group))
    return found


def _probe(optimizer: torch.optim.Optimizer, group: dict[str, Any], like: Vector) -> dict[str, torch.Tensor]:
    """What state the rule keeps with a group's options: one step on two elements tells."""
    piece, ones = (np.full_like(like, value, shape=2) for value in (0, 1))
    try:
        trial = Piece(optimizer, [Stretch(0, 2, 0)], 0, piece, ones, [{}], [group])
        state = trial.trial()
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        text = " ".join(str(error).split())
        raise UsageError(f"DistributedOptimizer: {type(optimizer).__name__} cannot take a step here: {text}") from None
    return state
