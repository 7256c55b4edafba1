"""A PyTorch module whose trainable parameters and gradients are views of two flat vectors."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray
from torch.utils.hooks import RemovableHandle

from psgd.kernels.errors import UsageError
from psgd.torch import buffers, owned, parameters
from psgd.torch.frontier import Frontier
from psgd.torch.kept_buffers import KeptBuffers
from psgd.torch.same_memory import array_of, tensor_of
from psgd.torch.streams import Streams
from psgd.worker.bound_model import BoundModel, Wait
from psgd.worker.interface import Vector


class Wrapped(BoundModel):
    """What `psgd.torch.wrap` gives; see there.

    Attributes:
        module: PyTorch's, to be used as before.
        device: of its trainable parameters.
        layout: names and shapes of the parameters in the vector.
        signature: of the buffers.
        spoiled: the next step's gradient is filled with NaN.
    """

    def __init__(self, module: torch.nn.Module, mode: str) -> None:
        if not isinstance(module, torch.nn.Module):
            raise UsageError(f"psgd.torch.wrap: expected a torch.nn.Module, got {type(module).__name__}")
        buffers.checked(mode)
        owned.check(module)
        self.module = module
        self._slots, self.layout, dtype = parameters.find(module)
        self._kept = KeptBuffers(module, mode)
        self.signature = self._kept.signature
        self._reduced = [slot for slot in self._slots if slot.reduced]
        self.device = self._slots[0].parameter.device
        self._streams = Streams(self.device) if self.device.type == "cuda" else None
        self._own = torch.zeros(self.layout.size, dtype=dtype, device=self.device)
        self._served: Vector | None = None  # on a server, in place of one on a GPU
        for slot in self._slots:
            slot.of(self._own).copy_(slot.parameter.detach())
        owned.take((slot.parameter for slot in self._slots), self)
        self.spoiled = False
        self._bound, self._hooks = False, list[RemovableHandle]()
        self._frontier = Frontier([slot.offset for slot in self._slots], self.layout.size)
        self._point(self._own, torch.zeros_like(self._own))

    @property
    def slots(self) -> list[parameters.Slot]:
        """The trainable parameters' places, in the order of the vector."""
        return self._slots

    @property
    def params(self) -> Vector:
        """The parameters that the module computes with, in `layout`'s order, with padding of 0.

        A view of NumPy, or of CuPy where they are on a GPU.
        """
        return array_of(self._params)  # type: ignore[no-any-return]

    @property
    def grads(self) -> Vector:
        """The gradients, as such a view. What it holds after a step is not defined."""
        return array_of(self._grads)  # type: ignore[no-any-return]

    @property
    def working(self) -> Vector:
        """What this rank hands to a strategy: its own parameters, on a server of a module on a GPU a copy."""
        return array_of(self._own) if self._served is None else self._served

    def to(self, device: Any) -> "Wrapped":
        """Moves the module and its vectors to the CPU or a GPU, outside of a block. Gradients are dropped.

        Returns:
            This.

        Raises:
            UsageError: the module is being trained.
        """
        self._refuse_bound("Wrapped.to")
        own = self._own
        for slot in self._slots:
            slot.parameter.grad = None
        self.module.to(device)
        self._slots, self.layout, _ = parameters.find(self.module)
        self._reduced = [slot for slot in self._slots if slot.reduced]
        self.device = self._slots[0].parameter.device
        self._streams = Streams(self.device) if self.device.type == "cuda" else None
        self._own = own.to(self.device)
        self._point(self._own, torch.zeros_like(self._own))
        return self

    def follow(self) -> None:
        """On a GPU: makes PyTorch's current stream CuPy's, on the module's GPU. Does not block."""
        if self._streams is not None:
            self._streams.use()

    def zero_grad(self) -> None:
        """Sets the gradients to zero in place; with the module's own `zero_grad` each step copies them once more."""
        self._grads.zero_()
        for slot, view in zip(self._slots, self._views, strict=True):
            if slot.reduced:  # its gradient has memory of its own
                view.zero_()
        self._restore()

    def prepare(self) -> Vector:
        self._refuse_bound("psgd.connect: params")
        self.follow()
        self._check()
        known = {id(slot.parameter) for slot in self._slots}
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad and id(parameter) not in known:
                raise _changed(name, "added")
        for slot in self._reduced:  # it may have been loaded since
            ours, theirs = slot.of(self._own), slot.parameter.detach()
            ours.copy_(torch.where(ours.to(theirs.dtype) == theirs, ours, theirs.to(ours.dtype)))
        return array_of(self._own)  # type: ignore[no-any-return]

    def serve(self) -> Vector:
        self._served = self._own.cpu().numpy()
        return self._served

    def bind(self, params: Vector, grads: Vector) -> None:
        self._bound = True
        self._follow()
        self._point(tensor_of(params), tensor_of(grads))

    def announce(self, ready: Callable[[range], None]) -> None:
        if not self._hooks:
            for index, slot in enumerate(self._slots):
                hook = partial(self._final, index)
                self._hooks.append(slot.parameter.register_post_accumulate_grad_hook(hook))
        self._frontier.begin(ready)

    def gather(self) -> None:
        self._follow()
        self._check()
        into, gradients = [], []
        for index, (slot, view) in enumerate(zip(self._slots, self._views, strict=True)):
            grad = slot.parameter.grad
            if grad is view and not slot.reduced:
                continue
            if self._frontier.is_final(index):
                pass
            elif grad is None or slot.reduced or grad.layout != torch.strided or grad.requires_grad:
                self._take(index)
            else:  # as a module's zero_grad leaves it: together they are copied faster
                into.append(view)
                gradients.append(grad)
            slot.parameter.grad = view
        if into:
            torch._foreach_copy_(into, gradients)
        if self.spoiled:
            self._grads.fill_(torch.nan)
        self._frontier.end()

    def scatter(self) -> None:
        self.spoiled = False
        self._follow()
        with torch.no_grad():
            for slot in self._reduced:
                slot.parameter.copy_(slot.of(self._params))

    def unbind(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()
        self._frontier.end()
        self._bound = False
        self._follow()
        if self._served is not None:
            self._own.copy_(tensor_of(self._served))
            self._served = None
        self._point(self._own, torch.zeros_like(self._own))
        if self._streams is not None:
            self._streams.leave()

    def begin(self, comm: MPI.Comm, wait: Wait, kept: Mapping[str, Any]) -> None:
        self._kept.begin(comm, wait, kept)

    def kept(self) -> dict[str, NDArray[np.uint8]]:
        return self._kept.kept()

    def put_back(self, kept: Mapping[str, Any]) -> None:
        self._kept.put_back(kept)

    def end(self, comm: MPI.Comm, wait: Wait, first: int, steps: int | None) -> None:
        self._kept.end(comm, wait, first, steps)

    def _point(self, params: torch.Tensor, grads: torch.Tensor) -> None:
        """Makes every parameter and gradient a view of these vectors."""
        self._params, self._grads = params, grads
        self._views, self._addresses = [], []
        for slot in self._slots:
            if not slot.reduced:
                slot.parameter.data = slot.of(params)
            self._addresses.append(slot.parameter.data_ptr())
            self._views.append(torch.zeros_like(slot.parameter) if slot.reduced else slot.of(grads))
        self._restore()
        self.scatter()

    def _follow(self) -> None:
        if self._streams is not None:
            self._streams.follow()

    def _refuse_bound(self, where: str) -> None:
        if self._bound:
            raise UsageError(f"{where}: the module is being trained in another block: leave that first")

    def _restore(self) -> None:
        """Makes each gradient the view again that it was."""
        for slot, view in zip(self._slots, self._views, strict=True):
            if slot.parameter.grad is not view:
                slot.parameter.grad = view

    def _take(self, index: int) -> None:
        """Brings one gradient into the vector, from wherever autograd has put it."""
        slot, view = self._slots[index], self._views[index]
        grad = slot.parameter.grad
        if grad is None:
            view.zero_()
            if slot.reduced:
                slot.of(self._grads).zero_()
        elif grad is not view or slot.reduced:
            if grad.layout != torch.strided:
                raise UsageError(f"psgd.torch: {slot.name}: expected a dense gradient, got {grad.layout}: sparse=False")
            slot.of(self._grads).copy_(grad.detach())
            if grad is not view:
                view.copy_(grad.detach())

    def _final(self, index: int, parameter: torch.Tensor) -> None:
        """Autograd's hook: one parameter's gradient is complete."""
        if self._frontier.open:
            if not self._frontier.is_final(index):
                self._take(index)
                parameter.grad = self._views[index]
            self._frontier.done(index)

    def _check(self) -> None:
        """Refuses to go on with a module that does not compute with the vector any more."""
        for slot, address in zip(self._slots, self._addresses, strict=True):
            parameter = slot.parameter
            for owner, key in slot.places:
                if owner.get(key) is not parameter:
                    raise _changed(slot.name, "replaced")
            if parameter.data_ptr() != address:
                raise _changed(slot.name, "moved or converted")
        for name, parameter in self._kept.frozen:
            if parameter.requires_grad:
                raise _changed(name, "made trainable")


def _changed(name: str, what: str) -> UsageError:
    return UsageError(
        f"psgd.torch: {name} was {what} after psgd.torch.wrap: change the module before, and load weights in place "
        "(load_state_dict without assign=True)"
    )
