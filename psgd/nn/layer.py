"""What a layer is: a description without parameters or activations, and arithmetic on what it is given."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from psgd.kernels.array import Array
from psgd.kernels.layers.draws import Draws
from psgd.nn.initialize import Initializer
from psgd.nn.pytorch import TorchForm

Shape = tuple[int, ...]
Arrays = tuple[Array, ...]
State = TypeVar("State")


@dataclass(frozen=True)
class ParameterSpec:
    """One parameter that a layer asks for; its name is the layer's own, as in "weight".

    Attributes:
        name, shape: of it.
        initializer: draws its first values.
        torch: what makes the whole of it PyTorch's; None where it is the same there.
        tied: the name, in the whole model, of an earlier layer's parameter that this one is another name of.
        part: (shape of the whole, where the part begins along each axis), where this is a part of a parameter that
            several ranks share; None: all of it.
    """

    name: str
    shape: Shape
    initializer: Initializer
    torch: TorchForm | None = None
    tied: str | None = None
    part: tuple[Shape, Shape] | None = None

    def draw(self, rng: np.random.Generator) -> Array:
        """Returns its first values on the host: of a part, what the whole has there, so the whole is drawn."""
        if self.part is None:
            return self.initializer.draw(rng, self.shape)
        whole, start = self.part
        mine = tuple(slice(first, first + extent) for first, extent in zip(start, self.shape, strict=True))
        return self.initializer.draw(rng, whole)[mine]


@dataclass(frozen=True)
class Room:
    """Where and for how many samples a layer's buffers are made.

    Attributes:
        xp: `numpy` or `cupy`.
        batch: most samples of one forward pass.
        dtype: of activations.
        shape: of one input sample.
        wants_dx: whether backward will be asked for the input's gradient.
        name: of the layer in the whole model, as "residual1.dropout2".
        draws: by what all layers of the context draw random numbers; None: nothing is drawn.
        pool: buffers of the context that layers share which run one after the other, by shape and dtype.
        trains: whether backward may follow; else nothing is kept for it.
        level: how many layers this one is inside of, where nothing is kept.
    """

    xp: Any
    batch: int
    dtype: np.dtype[Any]
    shape: Shape
    wants_dx: bool
    name: str = ""
    draws: Draws | None = None
    pool: dict[Any, Any] = field(default_factory=dict)
    trains: bool = True
    level: int = 0

    @property
    def on_host(self) -> bool:
        """Whether buffers are NumPy's."""
        return bool(self.xp.__name__ == "numpy")

    def empty(self, *shape: int, dtype: Any = None) -> Array:
        """Returns an uninitialized buffer of `shape` for each of `batch` samples."""
        return self.xp.empty((self.batch, *shape), dtype or self.dtype)

    def dx(self) -> Array:
        """Returns a buffer for the input's gradient; None where it is not wanted."""
        return self.empty(*self.shape) if self.wants_dx else None

    def zeros(self, *shape: int) -> Array:
        """Returns a zeroed buffer of `shape` for each of `batch` samples."""
        return self.xp.zeros((self.batch, *shape), self.dtype)


class CutLoss(Protocol):
    """Softmax cross-entropy of scores of which each of several ranks has some classes.

    Attributes:
        classes: number of all.
    """

    classes: int

    def __call__(self, logits: Array, labels: Array, scale: float) -> tuple[float, int]:
        """Does to this rank's part of the logits what `softmax_cross_entropy` does to all. Collective, blocks."""

    def predict(self, logits: Array) -> Array:
        """Returns the class of each row's largest logit of all ranks, int64. Collective, blocks."""


@dataclass
class OutputState:
    """The state of a layer that needs no more: its output, and the input's gradient or None."""

    y: Array
    dx: Array


class Layer(ABC, Generic[State]):
    """One layer. Instances are immutable and may be shared between models.

    All buffers live in a state made by `allocate`, one for each context; parameters and gradients are views
    handed to each call, in the order of `weights`. `n`, the samples of a call, is the length of its input and at
    most the state's batch. Samples have any shape; images are channels last: (n, height, width, channels).
    """

    name = ""

    @property
    def reads_output(self) -> bool:
        """Whether backward needs what forward returned, so that a loss must not write its gradient there.

        So it is where forward returns a view of its input: the layer before may need it.
        """
        return True

    @property
    def own_output(self) -> bool:
        """Whether forward returns a buffer of the state, and never its input or a view of that."""
        return not self.reads_output

    @property
    def loss(self) -> "CutLoss | None":
        """What a model that ends in this layer is trained with, where the output is a part of the classes' scores."""
        return None

    @abstractmethod
    def output_shape(self, shape: Shape) -> Shape:
        """Returns the shape of one output sample, or raises UsageError when `shape` does not fit."""

    def weights(self, shape: Shape) -> tuple[ParameterSpec, ...]:
        """Returns the parameters for inputs of `shape`: any number of them."""
        return ()

    @abstractmethod
    def allocate(self, room: Room) -> State:
        """Makes every buffer that forward and backward need."""

    @abstractmethod
    def forward(self, state: State, x: Array, params: Arrays) -> Array:
        """Returns the output, a buffer of `state` or a view of x.

        x is not written, and must stay unchanged until backward.
        """

    @abstractmethod
    def backward(self, state: State, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """Overwrites each of `grads`, and returns the input's gradient (None where not wanted).

        Once for each forward. dy may be overwritten. What is returned is a buffer of `state`, or dy.
        """

    def late(self, shape: Shape) -> tuple[int, ...]:
        """Which gradients, by place in `weights`, `backward_input` leaves to `backward_weights`.

        Pipelines do these products where they would wait otherwise. A layer that is not made for it leaves none.
        """
        return ()

    def backward_input(self, state: State, dy: Array, params: Arrays, grads: Arrays) -> Array:
        """As `backward`, but for the `late` ones of `grads`; dy must stay unchanged from then until these are done."""
        return self.backward(state, dy, params, grads)

    def backward_weights(self, state: State, grads: Arrays) -> None:
        """Overwrites the `late` ones of `grads`, after `backward_input`; later passes' `grads` may be others."""
        return
