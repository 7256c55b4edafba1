"""cnn: two 3 x 3 convolutions (16 and 32 channels), each with 2 x 2 max pooling and ReLU, and two linear layers."""

from typing import Any

from psgd.kernels.errors import UsageError
from psgd.nn.conv2d import Conv2D
from psgd.nn.layer import Layer
from psgd.nn.linear import Linear
from psgd.nn.maxpool import MaxPool
from psgd.nn.relu import ReLU
from psgd.nn.reshape import ChannelsLast, Flatten


def layers(shape: tuple[int, ...], classes: int, hidden: int) -> list[Layer[Any]]:
    """The layers for images.

    Raises:
        UsageError: samples of another shape, or smaller than 4 x 4 pixels.
    """
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise UsageError(
            f"model cnn needs images (channels, height, width) of at least 4 x 4 pixels, "
            f"got samples of shape {shape}: use softmax or mlp"
        )
    # The maximum and ReLU commute, gradients too: ReLU after pooling has a quarter of the work.
    return [
        ChannelsLast(),
        *(Conv2D(16, 3, padding=1), MaxPool(2), ReLU()),
        *(Conv2D(32, 3, padding=1), MaxPool(2), ReLU()),
        *(Flatten(), Linear(hidden, relu=True), Linear(classes)),
    ]
