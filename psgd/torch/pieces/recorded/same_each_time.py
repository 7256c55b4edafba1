"""Which modules start the same kernels in every pass, so that a graph may repeat them: what PyTorch itself has written.

A module of one's own may look at values, count its calls or draw numbers in Python, of which a graph knows nothing.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from psgd.torch.pieces.cut_linears import CutWeights

_PYTORCH, _OWN = "torch.nn.", "psgd.training.torch_module"


def same_each_time(module: nn.Module) -> bool:
    """Whether all parts of a module have PyTorch's own `forward`, no hooks, and do not wait for the GPU."""
    return all(map(_part, module.modules()))


def same_loss_each_time(loss: Callable[..., Any]) -> bool:
    """Whether a loss is one of `torch.nn`, or the default of `psgd train`."""
    if isinstance(loss, nn.Module):
        return same_each_time(loss)
    where = str(getattr(loss, "__module__", ""))
    return f"{where}.".startswith(_PYTORCH) or where == _OWN


def draws(module: nn.Module) -> bool:
    """Whether one of PyTorch's modules may draw random numbers: not those that surely do not."""
    kinds = (
        *(nn.Sequential, nn.Linear, nn.Identity, nn.Flatten, nn.Unflatten, nn.Embedding, nn.LayerNorm, nn.GroupNorm),
        *(nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.LeakyReLU, nn.ELU, nn.Softmax, nn.LogSoftmax),
        *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d),
        *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
    )
    return any(type(part).forward not in {kind.forward for kind in kinds} for part in module.modules())


def _part(part: nn.Module) -> bool:
    hooks = (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)
    waits = (
        getattr(part, "max_norm", None) is not None  # of an embedding
        or (isinstance(part, nn.modules.batchnorm._NormBase) and part.momentum is None)
        or isinstance(part, (nn.RNNBase, nn.EmbeddingBag, nn.TransformerEncoder))
    )
    own = f"{type(part).forward.__module__}.".startswith(_PYTORCH)
    return own and not any(hooks) and not waits and not isinstance(part, CutWeights)
