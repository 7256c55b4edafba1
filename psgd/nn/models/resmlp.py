"""resmlp: residual linear layers across tokens and within them (Touvron et al. 2021, without their scaling).

Samples are tokens (rows of pixels of an image), each made `hidden` features wide; twice a residual linear layer across
the tokens and a residual hidden layer within each; the mean over the tokens and an output layer.
"""

from typing import Any

from psgd.kernels.errors import UsageError
from psgd.nn.layer import Layer
from psgd.nn.layers.meanpool import MeanPool
from psgd.nn.linear import Linear
from psgd.nn.reshape import ChannelsLast, RowTokens, Transpose
from psgd.nn.residual import Residual

_BLOCKS = 2
"""Each mixes tokens, then features."""


def layers(shape: tuple[int, ...], classes: int, hidden: int) -> list[Layer[Any]]:
    """The layers for images, or for samples of tokens.

    Raises:
        UsageError: samples of another shape.
    """
    if len(shape) not in (2, 3):
        raise UsageError(
            f"model resmlp needs images (channels, height, width) or samples (tokens, features), "
            f"got samples of shape {shape}: use softmax or mlp"
        )
    tokens: list[Layer[Any]] = [ChannelsLast(), RowTokens()] if len(shape) == 3 else []
    across = Residual((Transpose(), Linear(shape[-2]), Transpose()))
    within = Residual((Linear(hidden, relu=True), Linear(hidden)))
    return [*tokens, Linear(hidden), *[across, within] * _BLOCKS, MeanPool(), Linear(classes)]
