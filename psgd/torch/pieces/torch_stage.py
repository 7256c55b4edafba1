"""Some layers of a `nn.Sequential` as a stage of a pipeline: passes over autograd's graph, one for each microbatch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from psgd.kernels.errors import UsageError
from psgd.nn.layer import Shape
from psgd.nn.layout import Layout
from psgd.nn.stage import OnReady
from psgd.runtime.rng import bits

LossOf = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""The mean loss over samples, of their output and labels."""


@dataclass
class GraphDraws:
    """Whether a pass is one of training, in which dropout drops.

    Attributes:
        on: it is.
        wanted: False: without a key, PyTorch's own generator goes on.
    """

    on: bool = True
    wanted: bool = False


@dataclass(eq=False)
class GraphContext:
    """One microbatch between its passes.

    Attributes:
        wants_dx: whether backward returns the input's gradient.
        draws: as `psgd.nn.stage.Context`.
        x: the input, a leaf of the graph.
        y: the output, or the loss.
        key: what random numbers depend on; None: on PyTorch's generator.
        xp: `numpy`: what is passed on is on the host.
    """

    wants_dx: bool
    draws: GraphDraws = field(default_factory=GraphDraws)
    x: torch.Tensor | None = None
    y: torch.Tensor | None = None
    key: tuple[int, int] | None = None
    xp: Any = np

    def draw(self, key: int, samples: NDArray[np.integer[Any]]) -> None:
        """The next pass is one of training, and draws by the key and the number of its first sample."""
        self.draws.on, self.key = True, (key, int(samples[0]))


class TorchStage:
    """Layers in a row. Takes the place of `psgd.nn.stage.Stage` in a pipeline, on the CPU.

    Parameters and gradients are where the modules have them: whoever makes views of vectors of them sets the gradients
    to zero before a batch, since each backward pass adds.

    Args:
        modules: the layers.
        index: the number of the first one in the whole.
        layout: of the trainable parameters.
        names_in_whole: for each of them its first name in the whole.
        dtype: of parameters, and of what goes from stage to stage.
        output_shape: of a sample.
        takes: dtype of the samples, if floating, where it is the first stage; else None.
    """

    def __init__(
        self,
        modules: Sequence[torch.nn.Module],
        index: int,
        layout: Layout,
        names_in_whole: dict[str, str],
        dtype: np.dtype[Any],
        output_shape: Shape,
        takes: torch.dtype | None,
    ) -> None:
        self.modules = tuple(modules)
        self.layout, self.names_in_whole, self.dtype, self.output_shape = layout, names_in_whole, dtype, output_shape
        self._index, self._takes = index, takes
        self._gives = torch.float64 if dtype == np.float64 else torch.float32
        # What goes from stage to stage must stay as it is until backward.
        self._in_place = any(getattr(part, "inplace", False) for part in self.modules[0].modules())

    def bind(self, params: Any, grads: Any = None) -> None:
        """Nothing: the modules' tensors are views of vectors already."""

    def context(self, batch: int, wants_dx: bool = False) -> GraphContext:
        """Makes what one microbatch needs."""
        return GraphContext(wants_dx)

    def forward(self, ctx: GraphContext, x: Any) -> NDArray[Any]:
        """Returns the output's memory, (n, *output_shape), which is kept until `backward`.

        Raises:
            UsageError: an output of another shape or dtype than the trial's.
        """
        with self._evaluating() if not ctx.draws.on else self._drawing(ctx):
            y = self._run(ctx, x)
        if tuple(y.shape[1:]) != self.output_shape or y.dtype != self._gives:
            raise UsageError(
                f"pipeline: the layers from {self._index} on: expected an output of {self.dtype} with samples of shape "
                f"{self.output_shape}, as of the trial, got {y.dtype} {tuple(y.shape[1:])}"
            )
        return y.detach().contiguous().numpy()  # type: ignore[no-any-return]

    def backward(
        self, ctx: GraphContext, dy: Any, on_ready: OnReady | None = None, accumulate: bool = False
    ) -> NDArray[Any] | None:
        """Adds the parameters' gradients to what they have, and returns the input's if it is wanted.

        Args:
            ctx: after one `forward`, which this uses up.
            dy: the output's gradient.
            on_ready: called with the whole vector's range.
            accumulate: is not needed.
        """
        dx = self.backward_input(ctx, dy)
        self.backward_weights(ctx, on_ready)
        return dx

    def backward_input(self, ctx: GraphContext, dy: Any, accumulate: bool = False) -> NDArray[Any] | None:
        """All of `backward`: autograd makes both halves at once."""
        x, y = ctx.x, ctx.y
        ctx.x = ctx.y = None
        if x is None or y is None:
            raise UsageError("backward: needs a forward pass on this context before it")
        if y.requires_grad:
            torch.autograd.backward(y, dy if isinstance(dy, torch.Tensor) else torch.from_numpy(dy))
        if not ctx.wants_dx:
            return None
        dx = torch.zeros_like(x) if x.grad is None else x.grad.contiguous()
        return dx.detach().numpy()  # type: ignore[no-any-return]

    def backward_weights(self, ctx: GraphContext, on_ready: OnReady | None = None, accumulate: bool = False) -> None:
        """Says that the gradients are ready, which they are."""
        if on_ready is not None and self.layout.size:
            on_ready(range(self.layout.size))

    def _run(self, ctx: GraphContext, x: Any) -> torch.Tensor:
        x = self._tensor(x)
        if self._takes is not None and x.is_floating_point():
            x = x.to(self._takes)
        x = x.detach().requires_grad_(ctx.wants_dx and torch.is_grad_enabled())
        y = x.clone() if self._in_place else x
        for module in self.modules:
            y = module(y)
        ctx.x, ctx.y = x, y
        return y

    @staticmethod
    def _tensor(array: Any) -> torch.Tensor:
        if isinstance(array, torch.Tensor):
            return array
        array = np.ascontiguousarray(array)
        return torch.from_numpy(array if array.flags.writeable else array.copy())

    @contextmanager
    def _drawing(self, ctx: GraphContext) -> Iterator[None]:
        """Random numbers of this pass depend on its key and stage alone; PyTorch's generator is as before then."""
        if ctx.key is None:
            yield
            return
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(bits(ctx.key[0], "torch", self._index, ctx.key[1]) >> 1)
            yield

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Modules in evaluation mode and without a graph; each is in its own mode again then."""
        modes = [(part, part.training) for module in self.modules for part in module.modules()]
        try:
            for part, _ in modes:
                part.training = False
            with torch.no_grad():
                yield
        finally:
            for part, training in modes:
                part.training = training


class TorchTail(TorchStage):
    """The last layers, with the loss.

    Attributes:
        loss_of: set by its owner.
    """

    loss_of: LossOf

    def loss(self, ctx: GraphContext, y: Any, *, batch_size: int) -> tuple[Any, float]:
        """Replaces the output by the loss: its share in the mean over `batch_size` samples.

        Raises:
            UsageError: the loss is not one number to differentiate.
        """
        if ctx.y is None:
            raise UsageError("loss: needs a forward pass on this context before it")
        with self._drawing(ctx):
            loss = self._mean(ctx.y, self._labels(y)) * (len(ctx.y) / batch_size)
        ctx.y = loss
        return torch.ones_like(loss), float(loss.detach())

    def evaluate(self, ctx: GraphContext, x: Any, y: Any, tally: Any = None) -> tuple[float, float]:
        """Right answers and summed loss; of labels that are no classes of the output's axis 1, nothing is right.

        A sample with several labels counts by the share of those that are right.
        """
        labels = self._labels(y)
        with self._evaluating():
            output = self._run(ctx, x)
            loss = float(self._mean(output, labels)) * len(output)
            right = 0.0
            if not labels.is_floating_point() and labels.shape == (output.shape[0], *output.shape[2:]):
                found = output.argmax(1)
                right = float((found == labels).reshape(len(output), -1).double().mean(1).sum())
                if tally is not None:
                    tally(labels.reshape(-1).numpy(), found.reshape(-1).numpy())
        return right, loss

    def _mean(self, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = self.loss_of(output, labels)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            got = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise UsageError(f"pipeline: loss: expected a tensor of one number, the mean over the samples, got {got}")
        return loss.reshape(())

    def _labels(self, y: Any) -> torch.Tensor:
        labels = self._tensor(y)
        whole = not labels.is_floating_point() and not labels.is_complex() and labels.dtype != torch.bool
        return labels.long() if whole else labels
