"""How PyTorch's layers have the same parameters: Linear (out, in), Conv2d (out, in, height, width), channels first."""

import math
from typing import NamedTuple

from psgd.kernels.array import Array, array_module

Shape = tuple[int, ...]


class TorchForm(NamedTuple):
    """What makes one parameter PyTorch's: seen as `split`, its axes in the order `axes`, then seen as `shape`."""

    split: Shape
    axes: Shape
    shape: Shape

    @property
    def sound(self) -> bool:
        """Whether such a thing can be: it may come from a file."""
        numbers = (*self.split, *self.axes, *self.shape)
        return (
            all(type(number) is int and number >= 0 for number in numbers)
            and sorted(self.axes) == list(range(len(self.split)))
            and math.prod(self.split) == math.prod(self.shape)
        )

    def of(self, array: Array) -> Array:
        """A copy of the parameter in that form."""
        turned = array.reshape(self.split).transpose(self.axes)
        return array_module(array).ascontiguousarray(turned).reshape(self.shape)


def linear(inputs: int, units: int) -> TorchForm:
    """Of a weight (inputs, units)."""
    return TorchForm((inputs, units), (1, 0), (units, inputs))


def linear_behind_image(image: Shape, units: int) -> TorchForm:
    """Of a weight whose inputs are a flattened image (height, width, channels); PyTorch flattens channels first."""
    return TorchForm((*image, units), (3, 2, 0, 1), (units, math.prod(image)))


def convolution(size: int, inputs: int, channels: int) -> TorchForm:
    """Of a weight (size, size, inputs, channels)."""
    return TorchForm((size, size, inputs, channels), (3, 2, 0, 1), (channels, inputs, size, size))
