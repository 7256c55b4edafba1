"""`nn.Linear` of which each rank has some of the units, or of the inputs: a pair of them is one product in parts."""

import math
from collections.abc import Callable

import torch
from mpi4py import MPI
from torch.nn import functional

from psgd.collectives import Communicator
from psgd.collectives.mpi.split import split
from psgd.nn.layer import Shape
from psgd.runtime.agreement import agree
from psgd.torch.pieces.crossings import enter, leave

Draw = Callable[[torch.Tensor], object]
DEVICES = ("cpu", "cuda", "meta")
"""Where a module may be that is cut."""


class CutWeights(torch.nn.Module):  # type: ignore[misc]
    """A part of a linear module: some rows or columns of its weight, as PyTorch stores it.

    A rank without any has tensors without elements, which are not trained, and takes part in what the others do.

    Args:
        whole: of which it is a part; the values are its own then.
        comm: the ranks.
        unit: so many neighbours stay together, as the features of a head do.
        axis: of the weight that is cut: 0, the units; 1, the inputs.

    Attributes:
        comm: as given.
        in_features, out_features: of the whole.
        mine: which units or inputs this rank has.
        weight, bias: this rank's; the bias may be None.
    """

    def __init__(self, whole: torch.nn.Linear, comm: Communicator, unit: int, axis: int) -> None:
        super().__init__()
        self.comm, self.axis = comm, axis
        self.in_features, self.out_features = whole.in_features, whole.out_features
        self.mine = split(whole.weight.shape[axis], comm.size, unit)[comm.rank]
        self._trained = {name: p.requires_grad for name, p in whole.named_parameters()}
        self.weight = self._part(whole.weight, axis)
        bias = whole.bias if axis == 1 or whole.bias is None else self._part(whole.bias, 0)
        self.register_parameter("bias", bias)

    def _part(self, whole: torch.nn.Parameter, axis: int) -> torch.nn.Parameter:
        part = whole.detach().narrow(axis, self.mine.start, len(self.mine)).clone()
        return torch.nn.Parameter(part, requires_grad=whole.requires_grad and part.numel() > 0)

    def places(self) -> dict[str, tuple[Shape, Shape]]:
        """As `parts`, of the parameters that are trained."""
        return {name: place for name, place in self.parts().items() if self._trained[name]}

    def parts(self) -> dict[str, tuple[Shape, Shape]]:
        """For each parameter that is a part, also one without elements: the whole's shape, and where it begins.

        Returns:
            By the parameter's name here.
        """
        start = (self.mine.start, 0) if self.axis == 0 else (0, self.mine.start)
        found: dict[str, tuple[Shape, Shape]] = {"weight": ((self.out_features, self.in_features), start)}
        if self.bias is not None and self.axis == 0:
            found["bias"] = ((self.out_features,), (self.mine.start,))
        return found

    def reset_parameters(self) -> None:
        """The values that a whole `nn.Linear` would have, by the same random numbers: the weight is drawn whole."""
        bound = 1 / math.sqrt(self.in_features)
        self.draw(lambda whole: torch.nn.init.kaiming_uniform_(whole, a=math.sqrt(5)))
        if self.bias is not None:
            self.draw_bias(lambda whole: torch.nn.init.uniform_(whole, -bound, bound))

    def draw(self, draw: Draw) -> None:
        """Gives the weight its part of what `draw` fills a whole one with."""
        whole = torch.empty(self.out_features, self.in_features, dtype=self.weight.dtype)
        with torch.no_grad():
            draw(whole)
            self.weight.copy_(whole.narrow(self.axis, self.mine.start, len(self.mine)))

    def draw_bias(self, draw: Draw) -> None:
        """The same for the bias."""
        whole = torch.empty(self.out_features, dtype=self.weight.dtype)
        with torch.no_grad():
            draw(whole)
            self.bias.copy_(whole if self.axis == 1 else whole[self.mine.start : self.mine.stop])

    def live(self) -> torch.Tensor:
        """The weight; without elements, one with a gradient where the others' have, so that all graphs are alike."""
        if self.weight.numel():
            return self.weight
        return self.weight.detach().requires_grad_(self._trained["weight"])

    def extra_repr(self) -> str:
        """The whole's sizes, and what is here."""
        return f"{self.in_features}, {self.out_features}, mine={self.mine.start}:{self.mine.stop}"


class ColumnModule(CutWeights):
    """Some of the units: it takes the whole input, and gives this rank's features of the output."""

    def __init__(self, whole: torch.nn.Linear, comm: Communicator, unit: int = 1) -> None:
        super().__init__(whole, comm, unit, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Some features of the output. The input's gradients are summed in backward."""
        return self.product(enter(x, self.comm))

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """The same of an x that was entered already."""
        return functional.linear(x, self.live(), self.bias)


class RowModule(CutWeights):
    """Some of the inputs: it takes this rank's features, and gives the whole output. All ranks have the whole bias."""

    def __init__(self, whole: torch.nn.Linear, comm: Communicator, unit: int = 1) -> None:
        super().__init__(whole, comm, unit, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of the ranks' products, and then the bias, once. Collective, blocks."""
        y = leave(functional.linear(x, self.live()), self.comm)
        return y if self.bias is None else y + self.bias


def column_linear(linear: torch.nn.Linear, comm: "MPI.Intracomm | Communicator", unit: int = 1) -> ColumnModule:
    """Makes a module of some units of a linear one, for the features between it and `row_linear`. Collective, blocks.

    Args:
        linear: on the CPU or each rank's GPU, with the first rank's values then, or on the meta device. It can be
            dropped afterwards.
        comm: the ranks that share it; give one `psgd.collectives.Communicator` to all modules.
        unit: so many neighbours stay together: the width of a head.

    Raises:
        UsageError: not a linear module; on all ranks.
    """
    return ColumnModule(*_checked("column_linear", linear, comm, unit, 0), unit)


def row_linear(linear: torch.nn.Linear, comm: "MPI.Intracomm | Communicator", unit: int = 1) -> RowModule:
    """Makes a module that takes the features which each rank has from `column_linear`. Collective, blocks.

    Args:
        linear: as `column_linear`.
        comm: as `column_linear`.
        unit: as of the other.

    Raises:
        UsageError: not a linear module; on all ranks.
    """
    return RowModule(*_checked("row_linear", linear, comm, unit, 1), unit)


def same_values(module: torch.nn.Module, comm: Communicator) -> None:
    """Gives all ranks the first rank's parameters and buffers, one at a time. Collective, blocks."""
    for tensor in [*module.parameters(), *module.buffers()]:
        if not tensor.is_meta and tensor.numel():
            values = tensor.detach().cpu().contiguous()
            comm.Bcast(values.reshape(-1).view(torch.uint8).numpy())
            tensor.detach().copy_(values)


def communicator(comm: "MPI.Intracomm | Communicator") -> Communicator:
    """Psgd's, which a plain one gets. Collective then."""
    return comm if isinstance(comm, Communicator) else Communicator(comm)


def _checked(
    call: str, linear: torch.nn.Linear, comm: "MPI.Intracomm | Communicator", unit: int, axis: int
) -> tuple[torch.nn.Linear, Communicator]:
    complaint, described = None, ""
    if not isinstance(linear, torch.nn.Linear):
        complaint = f"expected a torch.nn.Linear, got {type(linear).__name__}"
    elif linear.weight.device.type not in DEVICES:
        complaint = f"expected a module on the CPU, a GPU or the meta device, got {linear.weight.device}"
    elif type(unit) is not int or unit < 1 or linear.weight.shape[axis] % unit:
        complaint = f"unit: expected a divisor of {linear.weight.shape[axis]}, got {unit!r}"
    else:
        described = f"{linear} {linear.weight.dtype} {linear.weight.device.type}"
    ours = communicator(comm)
    agree(ours.comm, f"psgd.torch.{call}", {"linear": described, "unit": unit}, complaint)
    same_values(linear, ours)
    return linear, ours
