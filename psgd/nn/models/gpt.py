"""gpt: a causal transformer on tokens, as GPT-2's (Radford et al. 2019): normalization first, one table in and out."""

from typing import Any

from psgd.kernels.errors import UsageError
from psgd.nn.layer import Layer
from psgd.nn.layers.attention import Attention
from psgd.nn.layers.embedding import Embedding, Positions, Unembedding
from psgd.nn.layers.gelu import GELU
from psgd.nn.layers.layernorm import LayerNorm
from psgd.nn.linear import Linear
from psgd.nn.residual import Residual

_WIDER = 4
"""How many times as wide as a token the hidden layers are."""


def layers(shape: tuple[int, ...], classes: int, layers: int, width: int, heads: int) -> list[Layer[Any]]:
    """The layers for samples of tokens below `classes`: embeddings, `layers` times two residual ones, scores.

    Args:
        shape: (tokens,).
        classes: the vocabulary.
        layers: each is attention and two linear layers, both residual and normalized first.
        width: features of a token.
        heads: of attention, a divisor of the width.

    Raises:
        UsageError: samples of another shape, or heads that do not divide the width.
    """
    if len(shape) != 1:
        raise UsageError(f"model gpt needs samples of tokens, got samples of shape {shape}")
    if width % heads:
        raise UsageError(f"model gpt: expected a width that is a multiple of its {heads} heads, got {width}")
    attention = Residual((LayerNorm(), Attention(heads)))
    hidden = Residual((LayerNorm(), Linear(_WIDER * width), GELU(), Linear(width)))
    return [
        *(Embedding(classes, width), Positions()),
        *[attention, hidden] * layers,
        *(LayerNorm(), Unembedding(classes)),
    ]
