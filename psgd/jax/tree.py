"""A pytree of JAX whose trainable leaves are one flat vector, and the gradient of its loss."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.jax import carried, gradient, leaves
from psgd.jax.aliases import Aliases, zeros
from psgd.kernels.errors import UsageError
from psgd.worker.bound_model import BoundModel, Wait
from psgd.worker.interface import Vector

_STATE = "psgd.jax.state"


class WrappedTree(BoundModel):
    """What `psgd.jax.wrap` gives; see there.

    Attributes:
        layout: names and shapes of the trainable leaves in the vector.
        signature: of what is not trained.
    """

    def __init__(
        self,
        params: Any,
        loss_fn: Callable[..., Any] | None,
        state: Any,
        has_aux: bool,
        trainable: Any,
        final_state: str,
    ) -> None:
        if loss_fn is not None and not callable(loss_fn):
            raise UsageError(f"psgd.jax.wrap: loss_fn: expected a function, got {type(loss_fn).__name__}")
        self._mode, self._has_aux = carried.checked(final_state), has_aux
        self._leaves, values = leaves.find(params, trainable)
        self._device, self.layout = self._leaves.device, self._leaves.layout
        names, self._state, structure = carried.flat(state, self._device)
        self._form = gradient.StateForm(structure, names, self._state)
        frozen = [(self._leaves.names[index], values[index]) for index in self._leaves.frozen]
        self._frozen = [jax.device_put(value, self._device) for _, value in frozen]
        reduced = [(leaf.name, str(leaf.dtype)) for leaf in self._leaves.trained if str(leaf.dtype) in leaves.REDUCED]
        described = carried.described([*names, *(name for name, _ in frozen)], [*self._state, *self._frozen])
        self.signature = f"final_state={final_state}: {described}, {reduced}"
        form = self._form if state is not None else None
        self._compiled = gradient.compiled(self._leaves, loss_fn, form, has_aux) if loss_fn is not None else None
        self._grads: list[Any] | None = None
        self._ready: Callable[[range], None] | None = None
        self._own = zeros(self.layout.size, self._leaves.dtype)
        for leaf in self._leaves.trained:
            leaf.of(self._own)[...] = np.asarray(values[leaf.index])
        self._bound, self.spoiled = False, False
        self._point(self._own, None)

    @property
    def params(self) -> Any:
        """The parameters as they are now, in the structure that was given: a copy, so later steps do not change it."""
        return self.unflatten(self._vector)

    @property
    def state(self) -> Any:
        """The state as it is now, in the structure that was given; None where there is none."""
        return self._form.joined(self._state)

    @property
    def grads(self) -> Any:
        """The gradient that the next step takes, in the structure of `params`, with None for what is frozen.

        `value_and_grad` sets it, and so may a loop: what another function has computed, or this one's in another form.
        None before, and after a step.
        """
        return None if self._grads is None else self._leaves.joined(self._grads, [None] * len(self._frozen))

    @grads.setter
    def grads(self, tree: Any) -> None:
        self._grads = self._leaves.trained_of(tree, "grads")

    def unflatten(self, vector: Vector) -> Any:
        """The pytree with the parameters of a flat vector, such as `ps.evaluated_params`: a copy."""
        copies = [leaf.of(vector).astype(leaf.dtype) for leaf in self._leaves.trained]
        return self._leaves.joined([jax.device_put(each, self._device) for each in copies], self._frozen)

    def value_and_grad(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """The loss on a batch and its gradient, which the next step takes; also replaces the state. Waits for them.

        Args:
            *args: what `loss_fn` takes behind parameters and state: arrays and pytrees of them.
            **kwargs: the same by name.

        Returns:
            As `jax.value_and_grad`: the loss, or a pair of the loss and what else `loss_fn` gives with `has_aux`; and
            the gradient in the structure of `params`, with None for what is frozen.

        Raises:
            UsageError: `loss_fn` returns something else than it should.
        """
        if self._compiled is None:
            raise UsageError("psgd.jax: value_and_grad: expected a loss_fn in psgd.jax.wrap, got none")
        values = self._aliases.arrays()
        try:
            given = self._compiled(values, self._frozen, self._state, args, kwargs)
        except UsageError as error:  # without what JAX adds to it
            raise UsageError(str(error)) from None
        value, found, state, aux = jax.block_until_ready(given)  # the next step changes the memory of `values`
        self._grads, self._state = found, state
        return (value, aux) if self._has_aux else value, self.grads

    def prepare(self) -> Vector:
        if self._bound:
            raise UsageError("psgd.connect: params: the pytree is being trained in another block: leave that first")
        return self._own

    def bind(self, params: Vector, grads: Vector) -> None:
        self._bound = True
        self._point(np.asarray(params), np.asarray(grads))

    def announce(self, ready: Callable[[range], None]) -> None:
        self._ready = ready

    def gather(self) -> None:
        found, self._grads = self._grads, None
        if found is None:
            raise UsageError(
                "psgd.jax: step: expected a gradient since the last step: call value_and_grad, set grads, or pass "
                "samples=0"
            )
        ready, self._ready, end = self._ready, None, self.layout.size
        arrays = found if self._aliases.shared else jax.device_get(found)
        for leaf, view, grad in zip(self._leaves.trained[::-1], self._views[::-1], arrays[::-1], strict=True):
            np.copyto(view, np.asarray(grad), casting="unsafe")
            if ready is not None:  # XLA gives all at once, so only the copies overlap with what is on its way
                ready(range(leaf.offset, end))
                end = leaf.offset

    def scatter(self) -> None:
        pass  # JAX computes in the vector's memory, or copies it each time

    def unbind(self) -> None:
        self._bound = False
        self._point(self._own, None)

    def begin(self, comm: MPI.Comm, wait: Wait, kept: Mapping[str, Any]) -> None:
        self._take(carried.broadcast([*self._state, *self._frozen], comm, wait, 0, self._device))
        self.put_back(kept)

    def kept(self) -> dict[str, NDArray[np.uint8]]:
        data = carried.packed(self._state)
        return {_STATE: data} if data.size else {}

    def put_back(self, kept: Mapping[str, Any]) -> None:
        if (own := kept.get(_STATE)) is not None:
            self._state = carried.unpacked(self._state, own, self._device)

    def end(self, comm: MPI.Comm, wait: Wait, first: int, steps: int | None) -> None:
        mine = self._state
        if self._mode == "average":
            self._state = carried.average(mine, comm, wait, first, bool(steps), self._device)
        self._take(carried.broadcast([*self._state, *self._frozen], comm, wait, first, self._device))
        if self._mode == "local" and steps is not None:
            self._state = mine

    def _take(self, arrays: list[jax.Array]) -> None:
        """What is not trained, all ranks' alike."""
        self._state, self._frozen = arrays[: len(self._state)], arrays[len(self._state) :]

    def _point(self, params: Vector, grads: Vector | None) -> None:
        """Computes with this vector from now on, and leaves gradients in the other."""
        self._vector, self._aliases = params, Aliases(params, self._leaves.trained, self._device)
        self._views = [] if grads is None else [leaf.of(grads) for leaf in self._leaves.trained]
        self._grads = self._ready = None
