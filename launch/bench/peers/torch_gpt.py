"""PyTorch's side of `psgd bench gpt`: the same transformer of its own modules, its fused attention, its Adam."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


class TransformerBlock(nn.Module):  # type: ignore[misc]
    """Causal attention and a hidden layer, both residual and normalized first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        hidden = nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
        self.hidden = nn.Sequential(nn.LayerNorm(width), *hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens (n, tokens, width), the same."""
        n, tokens, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(n, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, tokens, width))
        return x + self.hidden(x)


class GPT(nn.Module):  # type: ignore[misc]
    """What `psgd.nn.models.gpt` is, with its parameters in the same order."""

    def __init__(self, vocabulary: int, context: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.empty(context, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(layers)))
        self.last = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens (n, context) to scores (n, context, vocabulary), by the table that embeds them."""
        y = self.last(self.blocks(self.tokens(x) + self.places))
        return nn.functional.linear(y, self.tokens.weight)


def take(model: nn.Module, weights: Mapping[str, Any]) -> None:
    """Copies weights, in the layers' order and PyTorch's form, to the model.

    Its own order is the same, but that a parameter of a module itself comes before those of the modules in it.
    """
    names = sorted(weights, key=lambda name: (not name.startswith("positions"),))
    with torch.no_grad():
        for parameter, name in zip(model.parameters(), names, strict=True):
            parameter.copy_(torch.from_numpy(weights[name]))


class Steps:
    """Adam's steps on batches."""

    def __init__(self, model: nn.Module, lr: float) -> None:
        self._model = model
        self._optimizer = torch.optim.Adam(model.parameters(), lr=lr, fused=True)

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> float:
        """Takes one on int64 tokens and labels (n, context); returns the mean loss before it."""
        self._optimizer.zero_grad()
        z = self._model(x)
        loss = nn.functional.cross_entropy(z.flatten(0, 1), y.flatten())
        loss.backward()
        self._optimizer.step()
        mean: float = loss.item()
        return mean
