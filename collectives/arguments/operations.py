"""The reductions that psgd does itself: sum, product, minimum, maximum and mean."""

from dataclasses import dataclass
from typing import Any

from mpi4py import MPI
from numpy.typing import NDArray

from psgd.kernels import reduce
from psgd.kernels.errors import UsageError

MEAN = "mean"
AnyOp = MPI.Op | str
"""What callers pass for an operation."""


@dataclass(frozen=True)
class Operation:
    """One reduction.

    Attributes:
        name: as in messages.
        number: in fingerprints; no other operation has it.
        code: of the kernel, or -1 where only MPI can do it.
        mpi: what MPI calls it; for the mean its sum.
        mean: the sum is divided by the number of ranks at the end.
    """

    name: str
    number: int
    code: int
    mpi: MPI.Op
    mean: bool = False

    def combine(self, out: NDArray[Any], a: NDArray[Any], b: NDArray[Any]) -> None:
        """`out = a op b` for 1-D arrays of one length and dtype; `out` may be `a` or `b`."""
        reduce.combine(self.code, out, a, b)

    def finish(self, out: NDArray[Any], ranks: int) -> None:
        """What is left to do once all ranks' values are in `out`: the mean's division."""
        if self.mean:
            reduce.divide(out, ranks)

    def accepts(self, dtype: str) -> bool:
        """Whether it is defined for a dtype, by name: minima of complex numbers and means of integers are not."""
        if self.code < 0:  # MPI's own arithmetic, which has no 16-bit floats
            if self.name in _OTHERS:
                return dtype == "bool" if self.name.startswith("L") and dtype == "bool" else "int" in dtype
            return dtype not in {"float16", "bfloat16"}
        if dtype == "bool":
            return False
        if dtype.startswith("complex"):
            return self.code in {reduce.SUM, reduce.PROD}
        return not self.mean or "float" in dtype

    def same_in_mpi(self, kind: str) -> bool:
        """Whether MPI's own gives what the kernels give: it may drop NaN from minima, and saturate small integers."""
        if self.code in {reduce.MIN, reduce.MAX} and "float" in kind:
            return False
        return kind not in {"int8", "int16", "uint8", "uint16"}


SUM_ = Operation("SUM", 1, reduce.SUM, MPI.SUM)
PROD_ = Operation("PROD", 2, reduce.PROD, MPI.PROD)
MIN_ = Operation("MIN", 3, reduce.MIN, MPI.MIN)
MAX_ = Operation("MAX", 4, reduce.MAX, MPI.MAX)
MEAN_ = Operation("mean", 5, reduce.SUM, MPI.SUM, mean=True)
ALL = (SUM_, PROD_, MIN_, MAX_, MEAN_)
_OTHERS = ("LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR", "MINLOC", "MAXLOC", "REPLACE", "NO_OP")
_NAMES = {operation.name.lower(): operation for operation in ALL}


def resolve(op: AnyOp) -> Operation:
    """Finds the operation for what a caller passed: an `MPI.Op`, or a name such as "mean".

    Raises:
        UsageError: neither.
    """
    if isinstance(op, str):
        if found := _NAMES.get(op.lower()):
            return found
    elif isinstance(op, MPI.Op):
        for operation in ALL[:4]:
            if op == operation.mpi:
                return operation
        for i, name in enumerate(_OTHERS):
            if op == getattr(MPI, name):
                return Operation(name, 16 + i, -1, op)
        if op != MPI.OP_NULL:
            return Operation("an operation of the program", 255, -1, op)
    raise UsageError(f"op: expected an MPI.Op such as MPI.SUM, or one of {', '.join(sorted(_NAMES))}, got {op!r}")


def operation_name(number: int) -> str:
    """The name behind an operation's number."""
    if 16 <= number < 16 + len(_OTHERS):
        return _OTHERS[number - 16]
    return next((operation.name for operation in ALL if operation.number == number), "an operation of the program")
