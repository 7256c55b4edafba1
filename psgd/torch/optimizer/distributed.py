"""`psgd.torch.DistributedOptimizer`: an existing loop's `torch.optim` optimizer, whose step is a strategy's."""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.mpi.agreement import together
from psgd.connector import connect
from psgd.connector.options import works_on_device
from psgd.kernels.errors import UsageError
from psgd.optim.rules import Rule
from psgd.torch.optimizer import choice
from psgd.torch.optimizer.group_settings import GroupSettings
from psgd.torch.optimizer.rule import ElementwiseRule, is_elementwise
from psgd.torch.optimizer.whole_rule import WholeRule
from psgd.torch.wrapped import Wrapped
from psgd.worker.bound_model import Wait

_NAME = "psgd.torch.DistributedOptimizer"
_SETTINGS = "psgd.torch.settings"
_LOCKSTEP = ("sync", "allreduce")


class OptimizedModule(Wrapped):
    """A wrapped module that has its optimizer's options saved with the buffers."""

    settings: GroupSettings

    def begin(self, comm: MPI.Comm, wait: Wait, kept: Mapping[str, Any]) -> None:
        super().begin(comm, wait, kept)
        saved = kept.get(_SETTINGS)
        if saved is not None:
            self.settings.read(saved[0] if isinstance(saved, list) else saved)

    def kept(self) -> dict[str, NDArray[Any]]:
        return super().kept() | {_SETTINGS: self.settings.values()}


class DistributedOptimizer(torch.optim.Optimizer):  # type: ignore[misc, unused-ignore]
    """See `psgd.torch.DistributedOptimizer`.

    Attributes:
        connection: what `psgd.connect` gave.
        model: the wrapped module.
    """

    _step_supports_amp_scaling = True

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        comm: MPI.Intracomm,
        *,
        module: torch.nn.Module | None,
        strategy: str,
        buffers: str,
        options: dict[str, Any],
    ) -> None:
        if not isinstance(comm, MPI.Intracomm):
            got = type(comm).__name__
            raise UsageError(f"DistributedOptimizer: comm: expected an intracommunicator of mpi4py, got {got}")
        alone = comm.Get_size() == 1
        together(comm, _NAME, lambda: self._prepare(optimizer, module, strategy, buffers, options, alone))
        self.connection = connect(
            comm, self.model, strategy=strategy, rule=self._rule_of(), lr=lambda samples: self.settings.lr, **options
        )
        if self._rule is not None:
            self._rule.lies_in(self.model.working)

    def _prepare(
        self,
        optimizer: torch.optim.Optimizer,
        module: torch.nn.Module | None,
        strategy: str,
        buffers: str,
        options: dict[str, Any],
        alone: bool,
    ) -> None:
        """What this rank does by itself."""
        if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, DistributedOptimizer):
            raise UsageError(
                f"DistributedOptimizer: optimizer: expected one of torch.optim, got {type(optimizer).__name__}"
            )
        choice.refuse(optimizer, strategy, options)
        if hasattr(module, "sharding"):
            raise UsageError(
                "DistributedOptimizer: module: expected one that is not sharded, as rules of torch.optim need all "
                "parameters: hand what psgd.torch.shard has returned to psgd.connect"
            )
        super().__init__(optimizer.param_groups, optimizer.defaults)  # its groups are the same dictionaries
        self._user, self.state = optimizer, optimizer.state
        self._user.param_groups = self.param_groups
        self._strategy, self._encodes = strategy, choice.encodes(strategy, options)
        self.settings = GroupSettings(optimizer, self._encodes)
        self.model = OptimizedModule(_module_of(optimizer) if module is None else module, buffers)
        self.model.settings = self.settings
        self._slots = self.model.slots
        _check_parameters(self.model, optimizer)
        self._loaded = dict(optimizer.state)
        self._rule = self._choose(alone or works_on_device(strategy))
        self.model.signature += f"; {type(optimizer).__name__}: {_described(self)}"
        self._overlapped = self._begun = False

    def _choose(self, near: bool) -> ElementwiseRule | WholeRule | None:
        """The rule, which works where the module is (`near`) or on the host."""
        if self._encodes:
            return None
        kind = ElementwiseRule if is_elementwise(self._user) else WholeRule
        like = self.model.params
        if not near and self.model.device.type != "cpu":
            like = np.empty(like.shape, like.dtype)
        return kind(self._user, self._slots, like, self.settings, self._loaded)

    def _rule_of(self) -> Rule:
        return choice.plain(self._user)._replace(settings=self.settings) if self._rule is None else self._rule.rule

    @property
    def worker(self) -> int:
        """This worker's index, from 0. On a server it ends the block's body."""
        return self.connection.worker

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return self.connection.workers

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the one to write files and print."""
        return self.connection.is_main

    @property
    def extra(self) -> dict[str, Any]:
        """What else this worker saves in checkpoints, such as a scheduler's state; see `psgd.connect`."""
        return self.connection.extra

    def overlap(self, samples: int) -> None:
        """Before the only backward pass of a step: parts of the gradient go out while it runs, where that can help.

        The gradients must then not be changed before `step`: neither clipped nor scaled.
        """
        self._overlapped = self.connection.overlap(samples) is not None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Sets all gradients to zero in place, whatever `set_to_none` is: they stay views of one vector."""
        if self.connection.is_server:
            _ = self.connection.worker  # ends the block's body
        self.model.zero_grad()

    def step(self, closure: Callable[[], Any] | None = None, *, samples: int = 1, loss: float | None = None) -> Any:
        """Takes the strategy's step with the gradients as they are. Blocks until this worker may continue.

        Args:
            closure: evaluated once, before.
            samples: behind the gradient, where workers' batches differ in size: its weight.
            loss: their mean loss, for the log.

        Returns:
            What the closure returned.

        Raises:
            UsageError: outside of the block, or as `psgd.connect`'s `step`.
        """
        connection, result = self.connection, None
        _ = connection.worker  # ends the block's body on a server, before the closure is evaluated
        if closure is not None:
            with torch.enable_grad():
                result = closure()
            if loss is None and result is not None:
                loss = float(result)
        self._user._opt_called = True  # for schedulers that were made with it
        found, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)  # of a GradScaler
        if scale is not None:
            self._unscale(scale)
        if found is not None:
            self.settings.guarded = True
            if found.item():
                loss = None
                if samples and self._strategy in _LOCKSTEP and not self._encodes:
                    self.model.spoiled = True  # nobody takes this step
                else:
                    samples = 0  # only this worker does not
        self._overlapped = False
        connection.step(samples, *([] if loss is None else [loss]))
        return result

    def _unscale(self, scale: torch.Tensor) -> None:
        if self._overlapped:
            raise UsageError(
                "DistributedOptimizer: overlap: expected gradients that are final after backward(), got scaled ones: "
                "omit overlap() with a GradScaler"
            )
        factor = scale.double().reciprocal().item()
        for slot in self._slots:
            if slot.parameter.grad is not None:
                slot.parameter.grad.mul_(factor)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if hasattr(self, "connection"):
            raise UsageError("DistributedOptimizer: add_param_group: add all groups before")
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """As of `torch.optim`: the options, and the state where it is on this rank.

        With servers it is on them: after the block, the only server has it all, while workers and one server of
        several have the options alone.
        """
        packed: dict[str, Any] = self._user.state_dict()
        states = {slot.parameter: self._rule.state_of(slot) for slot in self._slots} if self._rule is not None else {}
        order = [p for group in self.param_groups for p in group["params"]]
        found = {index: state for index, p in enumerate(order) if (state := states.get(p)) is not None}
        return packed | {"state": found or packed["state"]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As of `torch.optim`, on all ranks, before the block.

        Raises:
            UsageError: it has a state, and this is too late, or no rule that could take it.
        """
        state = state_dict["state"]
        if state and (self._rule is None or self._begun):
            why = "this strategy's momentum is psgd's" if self._rule is None else "training has begun"
            raise UsageError(f"DistributedOptimizer: load_state_dict: {why}: load the state before it, or only options")
        user = self._user
        user.load_state_dict(state_dict)
        for mine, loaded in zip(self.param_groups, user.param_groups, strict=True):
            mine.update(loaded)
        user.param_groups, self.state = self.param_groups, user.state
        order = [p for group in self.param_groups for p in group["params"]]
        self._loaded.clear()  # not what PyTorch has rounded to a reduced parameter's dtype
        self._loaded.update({p: state[index] for index, p in enumerate(order) if index in state})

    def __enter__(self) -> "DistributedOptimizer":
        self._begun = True
        self.connection.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self.connection.__exit__(kind, error, trace)


def _module_of(optimizer: torch.optim.Optimizer) -> torch.nn.Module:
    """A module that has the optimizer's parameters and no buffers."""
    holder = torch.nn.Module()
    for index, group in enumerate(optimizer.param_groups):
        for number, parameter in enumerate(group["params"]):
            holder.register_parameter(f"group{index}_{number}", parameter)
    return holder


def _check_parameters(model: OptimizedModule, optimizer: torch.optim.Optimizer) -> None:
    """Refuses an optimizer of other parameters than the module's."""
    given = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    for slot in model.slots:
        if id(slot.parameter) not in given:
            raise UsageError(
                f"DistributedOptimizer: {slot.name}: expected every trainable parameter of the module in the "
                "optimizer, got none of this name: add it, or set requires_grad=False"
            )
    if others := given - {id(slot.parameter) for slot in model.slots}:
        raise UsageError(
            f"DistributedOptimizer: expected an optimizer of the module's parameters alone, got {len(others)} others: "
            "pass the module that has them all"
        )


def _described(optimizer: DistributedOptimizer) -> list[Any]:
    """The groups' options and parameters, which are the same on all ranks."""
    names = {id(slot.parameter): slot.name for slot in optimizer.model.slots}
    return [
        [sorted((key, repr(value)) for key, value in group.items() if key in optimizer.defaults)]
        + [names.get(id(p), "frozen") for p in group["params"]]
        for group in optimizer.param_groups
    ]
