"""`nn.MultiheadAttention` of which each rank has some heads: columns of query, key and value, rows of the output."""

import math
from typing import Any

import torch
from torch.nn import functional

from psgd.collectives import Communicator
from psgd.collectives.mpi.split import split
from psgd.kernels.errors import UsageError
from psgd.torch.pieces.crossings import enter, own_draws
from psgd.torch.pieces.cut_linears import ColumnModule, RowModule


class HeadsModule(torch.nn.Module):  # type: ignore[misc]
    """Some heads of an attention: called as the whole, but without weights in the result (None).

    Args:
        whole: of which it is a part.
        comm: the ranks.

    Attributes:
        query, key, value, out: linear modules, cut between heads.
        batch_first: as of the whole.
        in_proj_bias: None, by which PyTorch's encoder knows that it cannot take the weights itself.

    Raises:
        UsageError: an attention with a bias for keys, or with a zero attention.
    """

    in_proj_bias = None

    def __init__(self, whole: torch.nn.MultiheadAttention, comm: Communicator) -> None:
        super().__init__()
        if whole.bias_k is not None or whole.add_zero_attn:
            raise UsageError("expected an attention without add_bias_kv and add_zero_attn, to cut it by heads")
        self.comm, self.batch_first, self.dropout = comm, whole.batch_first, whole.dropout
        self.num_heads, self.head_dim = whole.num_heads, whole.head_dim
        self.heads = split(whole.num_heads, comm.size)[comm.rank]
        self._joint = whole.in_proj_weight is not None
        query, key, value = (ColumnModule(each, comm, whole.head_dim) for each in _linears(whole))
        self.query, self.key, self.value = query, key, value
        self.out = RowModule(whole.out_proj, comm, whole.head_dim)

    def in_whole(self) -> dict[str, tuple[str, int, int]]:
        """Where the parameters of its linear modules are in the whole attention, which may have three as one.

        Returns:
            By the name here: the name there, the row with which it begins there, and how many rows that one has.
        """
        inner = {"query": self.query, "key": self.key, "value": self.value}
        rows = sum(part.out_features for part in inner.values())
        found: dict[str, tuple[str, int, int]] = {}
        for place, (name, part) in enumerate(inner.items()):
            first = sum(each.out_features for each in list(inner.values())[:place])
            one = ("in_proj_weight", first, rows) if self._joint else (f"{name[0]}_proj_weight", 0, part.out_features)
            found |= {f"{name}.weight": one, f"{name}.bias": ("in_proj_bias", first, rows)}
        rows = self.out.out_features
        return found | {f"out.{key}": (f"out_proj.{key}", 0, rows) for key in ("weight", "bias")}

    def reset_parameters(self) -> None:
        """The whole's values, but for the order of random numbers."""
        for part in (self.query, self.key, self.value):
            units = part.out_features * (3 if self._joint else 1)
            bound = math.sqrt(6 / (units + part.in_features))
            part.draw(lambda whole, bound=bound: torch.nn.init.uniform_(whole, -bound, bound))  # type: ignore[misc]
            if part.bias is not None:
                torch.nn.init.zeros_(part.bias)
        self.out.reset_parameters()
        if self.out.bias is not None:
            torch.nn.init.zeros_(self.out.bias)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, None]:
        """As of `nn.MultiheadAttention`; the second is None. Collective, blocks."""
        batched = query.dim() == 3
        entered: dict[int, torch.Tensor] = {}
        q, k, v = (
            self._headed(part.product(entered.setdefault(id(x), self._entered(entered, x))), batched)
            for part, x in ((self.query, query), (self.key, key), (self.value, value))
        )
        if self.heads:
            mask = self._mask(q, k, attn_mask, key_padding_mask, batched)
            drops = self.dropout if self.training else 0.0
            with own_draws(self.comm, q, drops > 0 and not q.is_meta):
                y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=drops)
        else:
            y = q + (k.sum() + v.sum())  # nothing, with the others' graph
        y = y.transpose(1, 2).flatten(2)
        y = self.out(y if self.batch_first or not batched else y.transpose(0, 1))
        return (y if batched else y.squeeze(0)), None

    def _entered(self, entered: dict[int, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        """One sum in backward for all that one tensor is used as."""
        return entered[id(x)] if id(x) in entered else enter(x, self.comm)

    def _headed(self, x: torch.Tensor, batched: bool) -> torch.Tensor:
        """(n, heads, tokens, features of a head)."""
        if not batched:
            x = x.unsqueeze(0)
        elif not self.batch_first:
            x = x.transpose(0, 1)
        return x.reshape(x.shape[0], x.shape[1], len(self.heads), self.head_dim).transpose(1, 2)

    def _mask(self, q: torch.Tensor, k: torch.Tensor, attn: Any, padding: Any, batched: bool) -> torch.Tensor | None:
        """What is added to the scores of this rank's heads."""
        if attn is not None:
            attn = _added(attn, q.dtype)
            if attn.dim() == 3:
                attn = attn.reshape(len(q), self.num_heads, *attn.shape[1:])[:, self.heads.start : self.heads.stop]
        if padding is not None:
            padding = _added(padding if batched else padding.unsqueeze(0), q.dtype)[:, None, None, :]
            attn = padding.expand(-1, -1, q.shape[2], -1) if attn is None else attn + padding
        return attn  # type: ignore[no-any-return]


def _added(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask in which True is left out, as what is added to scores."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -math.inf)


def _linears(whole: torch.nn.MultiheadAttention) -> list[torch.nn.Linear]:
    """Query, key and value as modules of their own: views."""
    weights = (whole.q_proj_weight, whole.k_proj_weight, whole.v_proj_weight)
    joint, bias = whole.in_proj_weight, whole.in_proj_bias
    if joint is not None:
        weights = joint.chunk(3)
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    made = []
    for weight, one in zip(weights, biases, strict=True):
        with torch.device("meta"):
            linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=one is not None)
        trains = (whole.q_proj_weight if joint is None else joint).requires_grad
        linear.weight = torch.nn.Parameter(weight.detach(), requires_grad=trains)
        if bias is not None and one is not None:
            linear.bias = torch.nn.Parameter(one.detach(), requires_grad=bias.requires_grad)
        made.append(linear)
    return made
