"""Linear layers in one process whose products are cut as ranks cut them: for `harness.whole_model`.

Each rank's part is computed from contiguous copies, one rank after the other, and summands are added in rank order.
What lies between layers is whole here, whether the ranks have it split or not. Only the choice of the cuts comes from
psgd's plan.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from psgd.kernels.layers.activation import add_bias, bias_relu, bias_relu_backward
from psgd.kernels.layers.matmul import matmul, sum_rows
from psgd.nn import sequential
from psgd.nn.linear import Linear
from psgd.parallel.tensor.cut_linear import ColumnLinear, CutLinear
from psgd.parallel.tensor.layouts import REPLICATED
from psgd.parallel.tensor.plan import plan


def shares(extent: int, ranks: int) -> list[slice]:
    """As equal as can be, longer ones first."""
    each, more = divmod(extent, ranks)
    ends = np.cumsum([0, *(each + (rank < more) for rank in range(ranks))]).tolist()
    return [slice(ends[rank], ends[rank + 1]) for rank in range(ranks)]


@dataclass(frozen=True)
class WholeCut(Linear):
    """A linear layer cut by columns or by rows.

    Attributes:
        ranks: how many.
        columns: else rows.
        split: whether the ranks have the output split by features; each then has the bias of its own.
    """

    ranks: int = 1
    columns: bool = True
    split: bool = False

    def allocate(self, room: Any) -> Any:
        return SimpleNamespace()

    def forward(self, state: Any, x: Any, params: Any) -> Any:
        weight, bias = params
        state.x = x
        if self.columns:
            parts = [_product(x, weight[:, own]) for own in shares(self.units, self.ranks)]
        else:
            rows = shares(x.shape[-1], self.ranks)
            parts = [_in_order([_product(x[:, own], weight[own]) for own in rows])]
        for part, own in zip(parts, self._own(), strict=True):
            (bias_relu if self.relu else add_bias)(part, bias[own].copy())
        state.y = parts
        return np.concatenate(parts, axis=-1)

    def backward(self, state: Any, dy: Any, params: Any, grads: Any) -> Any:
        (weight, _), (dweight, dbias) = params, grads
        parts = []
        for y, own in zip(state.y, self._own(), strict=True):
            for piece in shares(y.shape[-1], 1 if self.columns or not self.split else self.ranks):
                part, db = dy[:, own][:, piece].copy(), np.empty(len(range(y.shape[-1])[piece]), dy.dtype)
                if self.relu:
                    bias_relu_backward(y[:, piece].copy(), part, db)
                else:
                    sum_rows(part, np.ones(len(dy), dy.dtype), db)
                dbias[own][piece] = db
                parts.append(part)
        if self.columns:
            summands = []
            for part, own in zip(parts, shares(self.units, self.ranks), strict=True):
                dweight[:, own] = _product(state.x.T, part)
                summands.append(_product(part, weight[:, own].copy().T))
            return _in_order(summands)
        dy = np.concatenate(parts, axis=-1)
        found = []
        for own in shares(state.x.shape[-1], self.ranks):
            dweight[own] = _product(state.x[:, own].copy().T, dy)
            found.append(_product(dy, weight[own].copy().T))
        return np.concatenate(found, axis=-1)

    def _own(self) -> list[slice]:
        return shares(self.units, self.ranks) if self.columns else [slice(0, self.units)]

    def parts(self, inputs: int) -> dict[str, list[tuple[slice, ...]]]:
        """What each rank has of the weight and of the bias, where that is less than all."""
        units = shares(self.units, self.ranks)
        if self.columns:
            return {"weight": [(slice(None), own) for own in units], "bias": [(own,) for own in units]}
        rows = {"weight": [(own,) for own in shares(inputs, self.ranks)]}
        return rows | ({"bias": [(own,) for own in units]} if self.split else {})


def _product(a: Any, b: Any) -> Any:
    a = a if a.flags.c_contiguous or a.T.flags.c_contiguous else a.copy()
    b = b if b.flags.c_contiguous or b.T.flags.c_contiguous else b.copy()
    out = np.empty((len(a), b.shape[1]), a.dtype)
    matmul(a, b, out)
    return out


def _in_order(summands: Sequence[Any]) -> Any:
    total = summands[0]
    for each in summands[1:]:
        total = total + each
    return total


def cut_alike(
    layers: Sequence[Any], shape: Sequence[int], ranks: int, cuts: Collection[int]
) -> tuple[list[Any], dict[str, list[tuple[slice, ...]]]]:
    """Layers for `WholeModel`, and what each rank has of their parameters, by name.

    Args:
        layers, shape: of the whole.
        ranks: that cut by tensor.
        cuts: where stages begin.
    """
    found = plan(layers, shape, SimpleNamespace(rank=0, size=ranks), cuts)  # type: ignore[arg-type]
    made = [
        WholeCut(
            each.units,
            each.relu,
            each.init,
            ranks=ranks,
            columns=isinstance(each, ColumnLinear),
            split=each.after != REPLICATED,
        )
        if isinstance(each, CutLinear)
        else each
        for each in found
    ]
    parts = {}
    for step in sequential.fit(made, tuple(shape))[0]:
        if isinstance(step.layer, WholeCut):
            parts |= {f"{step.name}.{name}": held for name, held in step.layer.parts(step.shape[-1]).items()}
    return made, parts
