"""The models by name."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from psgd.kernels.errors import UsageError
from psgd.nn.conv2d import Conv2D
from psgd.nn.layer import Layer
from psgd.nn.linear import Linear
from psgd.nn.maxpool import MaxPool
from psgd.nn.meanpool import MeanPool
from psgd.nn.model import Model
from psgd.nn.relu import ReLU
from psgd.nn.reshape import ChannelsLast, Flatten, RowTokens, Transpose
from psgd.nn.residual import Residual

NAMES = ("softmax", "mlp", "cnn", "resmlp")
_BLOCKS = 2
"""Of resmlp: each mixes tokens, then features."""


def build(name: str, input_shape: Sequence[int], classes: int, dtype: Any = np.float32, hidden: int = 256) -> Model:
    """Returns a model for samples of `input_shape` and `classes` classes.

    softmax: one linear layer. mlp: hidden layer of `hidden` with ReLU, and an output layer. cnn: two 3 x 3
    convolutions (16 and 32 channels), each with 2 x 2 max pooling and ReLU, and two linear layers. resmlp: samples as
    tokens (rows of pixels of an image), each made `hidden` features wide; twice a residual linear layer across the
    tokens and a residual hidden layer within each; the mean over the tokens and an output layer.

    Args:
        name: one of `NAMES`.
        input_shape: of one sample; (channels, height, width) for images, (tokens, features) for resmlp.
        classes: at least 2.
        dtype: float32 or float64.
        hidden: units of the hidden linear layer of mlp and cnn, and of each of resmlp.

    Raises:
        UsageError: an unknown name, or a shape that the model cannot take.
    """
    shape = tuple(input_shape)
    if not shape or min(shape) < 1 or classes < 2 or hidden < 1:
        raise UsageError(
            f"model {name}: needs samples of at least one value, 2 classes and 1 hidden unit; got samples of "
            f"shape {shape}, {classes} classes, {hidden} hidden units"
        )
    layers: dict[str, list[Layer[Any]]] = {
        "softmax": [Flatten(), Linear(classes)],
        "mlp": [Flatten(), Linear(hidden, relu=True), Linear(classes)],
        # The maximum and ReLU commute, gradients too: ReLU after pooling has a quarter of the work.
        "cnn": [
            ChannelsLast(),
            *(Conv2D(16, 3, padding=1), MaxPool(2), ReLU()),
            *(Conv2D(32, 3, padding=1), MaxPool(2), ReLU()),
            *(Flatten(), Linear(hidden, relu=True), Linear(classes)),
        ],
        "resmlp": [
            *((ChannelsLast(), RowTokens()) if len(shape) == 3 else ()),
            Linear(hidden),
            *_mixers(shape[-2] if len(shape) > 1 else 1, hidden),
            *(MeanPool(), Linear(classes)),
        ],
    }
    if name not in layers:
        raise UsageError(f"unknown model {name!r}: choose one of {', '.join(NAMES)}")
    if name == "cnn" and (len(shape) != 3 or min(shape[1:]) < 4):
        raise UsageError(
            f"model cnn needs images (channels, height, width) of at least 4 x 4 pixels, "
            f"got samples of shape {shape}: use softmax or mlp"
        )
    if name == "resmlp" and len(shape) not in (2, 3):
        raise UsageError(
            f"model resmlp needs images (channels, height, width) or samples (tokens, features), "
            f"got samples of shape {shape}: use softmax or mlp"
        )
    return Model(layers[name], shape, dtype)


def _mixers(tokens: int, hidden: int) -> list[Layer[Any]]:
    """Resmlp's residual blocks (Touvron et al. 2021, without their scaling)."""
    across = Residual((Transpose(), Linear(tokens), Transpose()))
    within = Residual((Linear(hidden, relu=True), Linear(hidden)))
    return [across, within] * _BLOCKS
