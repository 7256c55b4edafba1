"""mlp: a hidden layer with ReLU, and an output layer."""

from typing import Any

from psgd.nn.layer import Layer
from psgd.nn.linear import Linear
from psgd.nn.reshape import Flatten


def layers(shape: tuple[int, ...], classes: int, hidden: int) -> list[Layer[Any]]:
    """The layers for samples of any shape."""
    return [Flatten(), Linear(hidden, relu=True), Linear(classes)]
