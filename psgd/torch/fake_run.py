"""The bytes of a PyTorch module and of a step of it, on fake tensors: they have shapes and no memory."""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from psgd.kernels.errors import UsageError
from psgd.nn.layout import Layout
from psgd.torch import parameters

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class LiveBytes(TorchDispatchMode):  # type: ignore[misc]  # of a module without types
    """While it is open: the bytes of all tensors that operations make, until nobody refers to them.

    Attributes:
        now: bytes that are alive.
        peak: the most at any time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known = WeakIdKeyDictionary()

    def know(self, *tensors: torch.Tensor) -> None:
        """These were there before and do not count."""
        for each in tensors:
            self._known[each.untyped_storage()] = None

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            if isinstance(each, torch.Tensor) and (storage := each.untyped_storage()) not in self._known:
                nbytes = storage.nbytes()
                self._known[storage] = None
                weakref.finalize(storage, self._gone, nbytes).atexit = False
                self.now += nbytes
                self.peak = max(self.peak, self.now)
        return made

    def _gone(self, nbytes: int) -> None:
        self.now -= nbytes


class FakeModule:
    """A module of fake tensors.

    Args:
        make: makes the module, or it and a loss, or anything else; called once, with all tensors fake.
        default: the loss where there is none.
        shape: of one sample.

    Attributes:
        made: what `make` returned.
        module: PyTorch's; None where it returned something else, which has no more attributes then.
        layout: of its trainable parameters in a vector, as `psgd.torch.wrap` has them.
        slots: these parameters.
        itemsize: bytes of an element of the vector.
        others: bytes of its buffers and of its parameters that are not trained.

    Raises:
        UsageError: a module that `wrap` would refuse, or one that needs values to be made.
    """

    def __init__(self, make: Callable[[], object], default: Loss, shape: tuple[int, ...]) -> None:
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._shape = shape
        with self._mode:
            self.made = make()
        parts = self.made if isinstance(self.made, tuple) else (self.made, None)
        self.module = parts[0] if len(parts) == 2 and isinstance(parts[0], torch.nn.Module) else None
        if self.module is None:
            return
        self._loss: Loss = parts[1] or default
        with _refused():
            self.slots, layout, dtype = parameters.find(self.module)
        self.layout: Layout = layout
        self.itemsize = int(dtype.itemsize)
        trained = {id(p) for p in self.module.parameters() if p.requires_grad}
        rest = [t for t in (*self.module.parameters(), *self.module.buffers()) if id(t) not in trained]
        self.others = sum(t.nbytes for t in rest)

    def step(self, batch: int) -> int:
        """The most bytes at a time of forward, loss and backward, beside parameters, gradients and samples.

        Raises:
            UsageError: the module or its loss needs values, or cannot be called so.
        """
        assert self.module is not None
        self.module.train()
        with _refused(), self._mode, self._alive(batch) as (live, x, labels):
            self._loss(self.module(x), labels).backward()
        return live.peak

    def evaluation(self, batch: int) -> int:
        """The same of a forward pass for evaluation, of this module in that mode."""
        assert self.module is not None
        self.module.eval()
        with _refused(), self._mode, torch.no_grad(), self._alive(batch) as (live, x, labels):
            scores = self.module(x)
            scores.argmax(1)
            self._loss(scores, labels)
        return live.peak

    @contextlib.contextmanager
    def _alive(self, batch: int) -> Iterator[tuple[LiveBytes, torch.Tensor, torch.Tensor]]:
        assert self.module is not None
        kind = next((p.dtype for p in self.module.parameters() if p.is_floating_point()), torch.float32)
        place = next((p.device for p in self.module.parameters()), torch.device("cpu"))
        x = torch.zeros((batch, *self._shape), dtype=kind, device=place)
        labels = torch.zeros(batch, dtype=torch.int64, device=place)
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)  # a view of the gradients' vector, in a run
        live = LiveBytes()
        live.know(x, labels, *self.module.buffers())
        live.know(*(t for p in self.module.parameters() for t in (p, p.grad) if t is not None))
        with live:
            yield live, x, labels


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    """What the module raises is one message."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        said = (" ".join(str(error).split()) or "no message")[:300]
        raise UsageError(
            f"cannot be estimated on tensors without values: {type(error).__name__}: {said}; expected a module that "
            "runs whatever its values are"
        ) from error
