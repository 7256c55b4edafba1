"""Some layers of a `nn.Sequential` as a stage of a pipeline: passes over autograd's graph, one for each microbatch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from psgd.kernels.array import Array
from psgd.kernels.errors import UsageError
from psgd.nn.layer import Shape
from psgd.nn.layout import Layout
from psgd.nn.recompute.segments import Segments
from psgd.nn.stage import OnReady
from psgd.runtime.rng import bits
from psgd.torch.pieces import computed_twice
from psgd.torch.pieces.graph_context import GraphContext
from psgd.torch.pieces.losses_there import LossesThere
from psgd.torch.pieces.recorded.recorded_stage import RecordedStage
from psgd.torch.pieces.recorded.same_each_time import same_each_time, same_loss_each_time
from psgd.torch.pieces.seeded import seeded
from psgd.torch.same_memory import array_of, tensor_of

LossOf = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""The mean loss over samples, of their output and labels."""


class TorchStage:
    """Layers in a row. Takes the place of `psgd.nn.stage.Stage` in a pipeline, on the CPU or, after `on_gpu`, on a GPU.

    Parameters and gradients are where the modules have them: whoever makes views of vectors of them sets the gradients
    to zero before a batch, since each backward pass adds. On a GPU, that is to put the modules there too.

    Args:
        modules: the layers.
        index: the number of the first one in the whole.
        layout: of the trainable parameters.
        names_in_whole: for each of them its first name in the whole.
        dtype: of parameters, and of what goes from stage to stage.
        output_shape: of a sample.
        takes: dtype of the samples, if floating, where it is the first stage; else None.

    Attributes:
        index: as given.
        device: where it computes.
        losses: on a GPU: those of a batch.
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
        self.index, self._takes = index, takes
        self.device, self._xp = torch.device("cpu"), np
        self.losses: LossesThere | None = None
        self._gives = torch.float64 if dtype == np.float64 else torch.float32
        # What goes from stage to stage must stay as it is until backward.
        self._in_place = computed_twice.writes_its_input(self.modules[0])
        self._segments: Segments = ()
        self._point: Callable[[Array, Array], None] | None = None
        self._clear: Callable[[], None] | None = None

    def bind(self, params: Any, grads: Any = None) -> None:
        """Nothing: the modules' tensors are views of vectors already, but for those that `moves`."""
        if self._point is not None:
            self._point(params, grads)

    def moves(self, point: Callable[[Array, Array], None], clear: Callable[[], None]) -> None:
        """The vectors change from pass to pass from now on. A graph refers to their memory until its backward pass.

        Args:
            point: makes the modules' tensors views of vectors.
            clear: sets the gradients to zero, before a pass that is not to add to them.
        """
        self._point, self._clear = point, clear

    @property
    def moving(self) -> bool:
        """Whether the vectors change from pass to pass."""
        return self._point is not None

    def turn(self) -> None:
        """Nothing: `bind` has done it."""

    def recompute(self, segments: Segments) -> None:
        """Keeps of these layers, by their numbers here, the inputs of segments alone from now on."""
        self._segments = segments

    def on_gpu(self, gpu: Any, most: int) -> "TorchStage | RecordedStage":
        """Computes on the current GPU from now on; see `psgd.parallel.stages.interface.GoesToGpu`."""
        self._xp, self.losses = gpu.xp, LossesThere(gpu, most)
        if gpu.xp is not np:
            self.device = torch.device("cuda", torch.cuda.current_device())
        return RecordedStage(self, gpu) if gpu.captures and self.records else self

    @property
    def records(self) -> bool:
        """Whether a pass is the same kernels each time: of PyTorch's own layers, on no other ranks, and once."""
        return not self._segments and all(map(same_each_time, self.modules))

    def begin(self) -> None:
        """A batch begins."""
        if self.losses is not None:
            self.losses.begin()

    def done(self) -> bool:
        """Whether the batch's losses are there. Does not block."""
        return self.losses is None or self.losses.done()

    def context(self, batch: int, wants_dx: bool = False) -> GraphContext:
        """Makes what one microbatch needs."""
        return GraphContext(wants_dx, xp=self._xp)

    def forward(self, ctx: GraphContext, x: Any) -> Array:
        """Returns the output's memory, (n, *output_shape), which is kept until `backward`.

        Raises:
            UsageError: an output of another shape or dtype than the trial's.
        """
        return array_of(self.output(ctx, self.tensor(x)))

    def output(self, ctx: GraphContext, x: torch.Tensor) -> torch.Tensor:
        """The same with tensors. Raises UsageError as `forward`."""
        with self._evaluating() if not ctx.draws.on else self.drawing(ctx):
            y = self.run(ctx, x)
        if tuple(y.shape[1:]) != self.output_shape or y.dtype != self._gives:
            raise UsageError(
                f"pipeline: the layers from {self.index} on: expected an output of {self.dtype} with samples of shape "
                f"{self.output_shape}, as of the trial, got {y.dtype} {tuple(y.shape[1:])}"
            )
        return y.detach().contiguous()

    def backward(self, ctx: GraphContext, dy: Any, on_ready: OnReady | None = None, accumulate: bool = False) -> Array:
        """Adds the parameters' gradients to what they have, and returns the input's if it is wanted.

        Args:
            ctx: after one `forward`, which this uses up.
            dy: the output's gradient.
            on_ready: called with the whole vector's range.
            accumulate: what is there stays; needed where vectors move.
        """
        dx = self.backward_input(ctx, dy, accumulate)
        self.backward_weights(ctx, on_ready)
        return dx

    def backward_input(self, ctx: GraphContext, dy: Any, accumulate: bool = False) -> Array:
        """All of `backward`: autograd makes both halves at once."""
        dx = self.input_gradient(ctx, self.tensor(dy), accumulate)
        return None if dx is None else array_of(dx)

    def input_gradient(self, ctx: GraphContext, dy: torch.Tensor, accumulate: bool = False) -> torch.Tensor | None:
        """The same with tensors."""
        x, y = ctx.x, ctx.y
        ctx.x = ctx.y = None
        if x is None or y is None:
            raise UsageError("backward: needs a forward pass on this context before it")
        if self._clear is not None and not accumulate:
            self._clear()
        if y.requires_grad:
            # In this thread, also on a GPU: what a module asks of other ranks, all ask in the same order.
            with torch.autograd.set_multithreading_enabled(False):
                torch.autograd.backward(y, dy)
        if not ctx.wants_dx:
            return None
        return (torch.zeros_like(x) if x.grad is None else x.grad.contiguous()).detach()

    def backward_weights(self, ctx: GraphContext, on_ready: OnReady | None = None, accumulate: bool = False) -> None:
        """Says that the gradients are ready, which they are."""
        if on_ready is not None and self.layout.size:
            on_ready(range(self.layout.size))

    def run(self, ctx: GraphContext, x: torch.Tensor) -> torch.Tensor:
        """All layers, with a graph where there is to be one."""
        if self._takes is not None and x.is_floating_point():
            x = x.to(self._takes)
        x = x.detach().requires_grad_(ctx.wants_dx and torch.is_grad_enabled())
        y = x.clone() if self._in_place else x
        y = computed_twice.forward(self.modules, self._segments, y)
        ctx.x, ctx.y = x, y
        return y

    def tensor(self, array: Any) -> torch.Tensor:
        """An array or a tensor of either side as a tensor where the stage computes."""
        if not isinstance(array, torch.Tensor):
            if not hasattr(array, "__dlpack__") or isinstance(array, np.ndarray):
                array = np.ascontiguousarray(array)
                array = array if array.flags.writeable else array.copy()
            array = tensor_of(array)
        return array.to(self.device)

    @contextmanager
    def drawing(self, ctx: GraphContext) -> Iterator[None]:
        """Random numbers of this pass depend on its key and stage alone; PyTorch's generator is as before then."""
        if ctx.key is None:
            yield
            return
        with seeded(bits(ctx.key[0], "torch", self.index, ctx.key[1]) >> 1, self.device):
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

    def loss(self, ctx: GraphContext, y: Any, *, batch_size: int) -> tuple[Any, Any]:
        """Replaces the output by the loss: its share in the mean over `batch_size` samples.

        On a GPU what is returned as the loss is a number once `done` is true.

        Raises:
            UsageError: the loss is not one number to differentiate.
        """
        if ctx.y is None:
            raise UsageError("loss: needs a forward pass on this context before it")
        labels, share = self.labels(y), len(ctx.y) / batch_size
        ctx.y = mean = self.mean(ctx, labels)
        # Backward begins with the share: the bits are those of a loss that was multiplied by it.
        value = mean.detach() * share
        return torch.full_like(value, share), float(value) if self.losses is None else self.losses.take(value)

    def mean(self, ctx: GraphContext, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss over the samples of a pass.

        Raises:
            UsageError: it is not one number.
        """
        assert ctx.y is not None
        with self.drawing(ctx):
            return self._mean(ctx.y, labels)

    @property
    def records(self) -> bool:
        """As of `TorchStage`, and the loss is PyTorch's too."""
        return super().records and same_loss_each_time(self.loss_of)

    def evaluate(self, ctx: GraphContext, x: Any, y: Any, tally: Any = None) -> tuple[float, float]:
        """Right answers and summed loss; of labels that are no classes of the output's axis 1, nothing is right.

        A sample with several labels counts by the share of those that are right.
        """
        labels = self.labels(y)
        with self._evaluating():
            output = self.run(ctx, self.tensor(x))
            loss = float(self._mean(output, labels)) * len(output)
            right = 0.0
            if not labels.is_floating_point() and labels.shape == (output.shape[0], *output.shape[2:]):
                found = output.argmax(1)
                right = float((found == labels).reshape(len(output), -1).double().mean(1).sum())
                if tally is not None:
                    tally(labels.reshape(-1).cpu().numpy(), found.reshape(-1).cpu().numpy())
        return right, loss

    def _mean(self, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = self.loss_of(output, labels)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            got = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise UsageError(f"pipeline: loss: expected a tensor of one number, the mean over the samples, got {got}")
        return loss.reshape(())

    def labels(self, y: Any) -> torch.Tensor:
        labels = self.tensor(y)
        whole = not labels.is_floating_point() and not labels.is_complex() and labels.dtype != torch.bool
        return labels.long() if whole else labels
