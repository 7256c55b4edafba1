"""What is trained in `psgd bench ddp`: vectors that compute next to nothing, and a small ResNet."""

import torch
from torch import nn


class Vectors(nn.Module):  # type: ignore[misc]  # mypy does not see PyTorch
    """Parameters of one size each, whose gradients are whole numbers: every sum of them is exact.

    Args:
        count: of parameters.
        nbytes: of each, in float32.
    """

    def __init__(self, count: int, nbytes: int) -> None:
        super().__init__()
        self.vectors = nn.ParameterList(torch.zeros(nbytes // 4) for _ in range(count))

    def forward(self, weights: torch.Tensor) -> torch.Tensor:
        """The product of each vector with its weight, summed: a vector's gradient is its weight everywhere."""
        return torch.stack([v.sum() * w for v, w in zip(self.vectors, weights, strict=True)]).sum()


class Block(nn.Module):  # type: ignore[misc]
    """Two convolutions with BatchNorm, beside a shorter way."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm, self.last = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.two = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        same = before == after and stride == 1
        self.short = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of shape (n, before, h, w); the result (n, after, h / stride, w / stride)."""
        inner = torch.relu(self.norm(self.one(x)))
        return torch.relu(self.last(self.two(inner)) + self.short(x))


def resnet(width: int = 16, classes: int = 10) -> nn.Sequential:
    """Three blocks on images of three channels, always with the same start."""
    torch.manual_seed(3)
    stem = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    blocks = [Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes))


def resnet18(classes: int = 10) -> nn.Sequential:
    """ResNet-18 for images of 3 x 32 x 32 (He et al. 2016): 11 million parameters, always with the same start."""
    torch.manual_seed(3)
    blocks = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    before = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Block(before, width, stride), Block(width, width, 1)]
        before = width
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
