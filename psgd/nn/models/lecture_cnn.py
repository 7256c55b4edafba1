"""lecture-cnn: two 5 x 5 convolutions (32 and 64 channels), each with ReLU and 2 x 2 max pooling, 1024 units, dropout.

The convolutional network of TensorFlow's tutorials on handwritten digits, whose gradient has 13 MB.
"""

from typing import Any

from psgd.kernels.errors import UsageError
from psgd.nn.conv2d import Conv2D
from psgd.nn.layer import Layer
from psgd.nn.layers.dropout import Dropout
from psgd.nn.linear import Linear
from psgd.nn.maxpool import MaxPool
from psgd.nn.relu import ReLU
from psgd.nn.reshape import ChannelsLast, Flatten

_DENSE = 1024


def layers(shape: tuple[int, ...], classes: int, dropout: float = 0.0) -> list[Layer[Any]]:
    """The layers for images; `dropout` is the share of the dense layer's units that a step leaves out.

    Raises:
        UsageError: samples of another shape, or smaller than 4 x 4 pixels.
    """
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise UsageError(
            f"model lecture-cnn needs images (channels, height, width) of at least 4 x 4 pixels, "
            f"got samples of shape {shape}: use softmax or mlp"
        )
    # The maximum and ReLU commute, gradients too: ReLU after pooling has a quarter of the work.
    convolutions: list[Layer[Any]] = [
        ChannelsLast(),
        *(Conv2D(32, 5, padding=2), MaxPool(2), ReLU()),
        *(Conv2D(64, 5, padding=2), MaxPool(2), ReLU()),
    ]
    dense: list[Layer[Any]] = [Flatten(), Linear(_DENSE, relu=True)]
    return [*convolutions, *dense, *([Dropout(dropout)] if dropout else []), Linear(classes)]
