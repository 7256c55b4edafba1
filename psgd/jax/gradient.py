"""A loss and its gradient, compiled once for each shape of a batch."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from psgd.jax.leaves import Leaves, kind
from psgd.kernels.errors import UsageError

Compiled = Callable[..., tuple[jax.Array, list[jax.Array], list[jax.Array], Any]]


def compiled(leaves: Leaves, loss_fn: Callable[..., Any], state: "StateForm | None", has_aux: bool) -> Compiled:
    """A function from values of the trained leaves, frozen leaves, the state's arrays, and a batch's arguments.

    Values come in the vector's dtype. It returns the loss, the gradients in the leaves' own dtypes, the new state's
    arrays, and what else the loss function gave. Its answers are checked where JAX looks at it, so before anything
    runs, and only once for each shape of a batch.
    """

    def objective(
        trained: Sequence[Any], frozen: Sequence[Any], arrays: Sequence[Any], args: Any, kwargs: Any
    ) -> tuple[Any, Any]:
        params = leaves.joined(trained, frozen)
        if state is None:
            given = loss_fn(params, *args, **kwargs)
        else:
            given = loss_fn(params, state.joined(arrays), *args, **kwargs)
        value, aux = _pair(given, "aux") if has_aux else (given, None)
        if state is None:
            return _scalar(value, has_aux), ([], aux)
        value, new = _pair(value, "the new state")
        return _scalar(value, has_aux), (state.checked(new), aux)

    def both(values: Sequence[Any], *others: Any) -> tuple[Any, Any, Any, Any]:
        trained = [_rounded(value, leaf.dtype) for value, leaf in zip(values, leaves.trained, strict=True)]
        (value, (arrays, aux)), grads = jax.value_and_grad(objective, has_aux=True)(trained, *others)
        return value, grads, arrays, aux

    return jax.jit(both)  # type: ignore[no-any-return]


def _rounded(value: Any, dtype: Any) -> Any:
    """A leaf of the vector in its own dtype; XLA would leave out a rounding that the loss function reverses."""
    return value if value.dtype == dtype else jax.lax.optimization_barrier(value.astype(dtype))


class StateForm:
    """What a state is like, which a loss function must not change.

    Args:
        structure: JAX's.
        names: of the arrays.
        arrays: examples.
    """

    def __init__(self, structure: Any, names: Sequence[str], arrays: Sequence[jax.Array]) -> None:
        self._structure, self._names = structure, names
        self._like = [(a.shape, a.dtype) for a in arrays]

    def joined(self, arrays: Sequence[Any]) -> Any:
        """The pytree with these arrays."""
        return jax.tree_util.tree_unflatten(self._structure, arrays)

    def checked(self, new: Any) -> list[Any]:
        """The arrays of the state that a loss function returns.

        Raises:
            UsageError: it differs in more than its values.
        """
        found, structure = jax.tree_util.tree_flatten(new)
        if structure != self._structure:
            raise UsageError(
                f"psgd.jax: loss_fn: expected a new state of the structure {self._structure}, got {structure}"
            )
        arrays = [jnp.asarray(each) for each in found]
        for name, array, (shape, dtype) in zip(self._names, arrays, self._like, strict=True):
            if array.shape != shape or array.dtype != dtype:
                raise UsageError(
                    f"psgd.jax: loss_fn: state: {name}: expected {dtype} of shape {shape} as before, got {kind(array)}"
                )
        return [array.astype(dtype) for array, (_, dtype) in zip(arrays, self._like, strict=True)]


def _pair(given: Any, second: str) -> tuple[Any, Any]:
    """What a loss function returns together."""
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise UsageError(f"psgd.jax: loss_fn: expected it to return a pair with {second}, got {_what(given)}")
    return given[0], given[1]


def _scalar(value: Any, has_aux: bool) -> Any:
    """The loss, if it is one real number."""
    number = hasattr(value, "dtype") and value.shape == () and jnp.issubdtype(value.dtype, jnp.floating)
    if not number and not isinstance(value, float):
        fix = ": pass has_aux=True, or state" if isinstance(value, (tuple, list)) and not has_aux else ""
        raise UsageError(f"psgd.jax: loss_fn: expected it to return a loss of one real number, got {_what(value)}{fix}")
    return jnp.asarray(value)


def _what(value: Any) -> str:
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, (tuple, list)) else kind(value)
