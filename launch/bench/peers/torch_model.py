"""psgd's models as PyTorch modules: the same layers with the same initial parameters."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from psgd.kernels.errors import UsageError
from psgd.nn import models
from psgd.nn.conv2d import Conv2D
from psgd.nn.layer import Layer
from psgd.nn.layers.meanpool import MeanPool
from psgd.nn.linear import Linear
from psgd.nn.maxpool import MaxPool
from psgd.nn.relu import ReLU
from psgd.nn.reshape import ChannelsLast, Flatten, RowTokens, Transpose
from psgd.nn.residual import Residual


def build(name: str, input_shape: Sequence[int], classes: int, seed: int) -> nn.Module:
    """Returns the float32 module that computes what `psgd.nn.models.build` does, from the same parameters.

    It takes images as (n, channels, height, width), PyTorch's own order, whatever psgd's layers use inside;
    the weights are reordered to match.

    Raises:
        UsageError: as `psgd.nn.models.build`, or a layer that has no counterpart here.
    """
    model = models.build(name, input_shape, classes)
    views = iter(model.layout.views(model.init(seed)).values())
    modules: list[nn.Module] = []
    shape, flat_from = tuple(input_shape), tuple(input_shape)
    channels_last = False
    for layer in model.layers:
        if isinstance(layer, ChannelsLast):
            channels_last = True
        elif isinstance(layer, Flatten):
            flat_from = shape
            modules.append(nn.Flatten())
        elif isinstance(layer, RowTokens):
            channels_last = False
            modules.append(_Call(lambda x: x.permute(0, 2, 3, 1).flatten(2)))
        elif isinstance(layer, ReLU):
            modules.append(nn.ReLU())
        elif isinstance(layer, MaxPool):
            modules.append(nn.MaxPool2d(layer.size))
        elif isinstance(layer, Conv2D):
            weight = np.transpose(next(views), (3, 2, 0, 1))
            conv = nn.Conv2d(*weight.shape[1::-1], layer.size, layer.stride, layer.padding)
            modules.append(_filled(conv, weight, next(views)))
        elif isinstance(layer, Linear) and channels_last and len(flat_from) == 3:
            weight = next(views)
            weight = weight.reshape(*flat_from, -1).transpose(2, 0, 1, 3).reshape(weight.shape)
            channels_last = False
            modules += _linear(layer, weight, next(views))
        else:
            modules += _on_tokens(layer, views, name)
        shape = layer.output_shape(shape)
    assert math.prod(shape) == classes
    return nn.Sequential(*modules)


def _on_tokens(layer: Layer[Any], views: Iterator[np.ndarray], name: str) -> list[nn.Module]:
    """A layer on flat samples or tokens, whose order is the same here and there."""
    if isinstance(layer, Linear):
        return _linear(layer, next(views), next(views))
    if isinstance(layer, Transpose):
        return [_Call(lambda x: x.transpose(1, 2))]
    if isinstance(layer, MeanPool):
        return [_Call(lambda x: x.mean(1))]
    if isinstance(layer, Residual):
        branch = nn.Sequential(*(module for inner in layer.layers for module in _on_tokens(inner, views, name)))
        return [_Call(lambda x: x + branch(x), branch)]
    raise UsageError(f"bench train: no PyTorch counterpart of the layer {layer} of model {name}")


class _Call(nn.Module):  # type: ignore[misc,unused-ignore]
    """A function of one array as a module, with the module that it uses."""

    def __init__(self, function: Callable[[Any], Any], inner: nn.Module | None = None) -> None:
        super().__init__()
        self.function, self.inner = function, inner

    def forward(self, x: Any) -> Any:
        return self.function(x)


def _linear(layer: Linear, weight: np.ndarray, bias: np.ndarray) -> list[nn.Module]:
    linear = _filled(nn.Linear(*weight.shape), weight.T, bias)
    return [linear, nn.ReLU()] if layer.relu else [linear]


def _filled(module: nn.Conv2d | nn.Linear, weight: np.ndarray, bias: np.ndarray) -> nn.Module:
    """Copies psgd's first parameters into a module."""
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(np.ascontiguousarray(weight)))
        if module.bias is not None:
            module.bias.copy_(torch.from_numpy(bias))
    return module
