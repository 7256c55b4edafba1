"""Which leaves of a pytree are trained, and where each lies in the vector."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from psgd.kernels.errors import UsageError
from psgd.nn.layout import Layout
from psgd.worker.interface import Vector

REDUCED = ("float16", "bfloat16")


@dataclass(frozen=True, eq=False)
class Leaf:
    """One trainable leaf and its elements `offset` to `stop` of the vector.

    Attributes:
        name: its path in the pytree, with points between.
        index: among all leaves.
        shape, dtype: as they were given.
        offset, stop: of its elements.
    """

    name: str
    index: int
    shape: tuple[int, ...]
    dtype: Any
    offset: int
    stop: int

    def of(self, vector: Vector) -> Vector:
        """Its elements of a vector, in its shape: a view."""
        return vector[self.offset : self.stop].reshape(self.shape)


@dataclass(frozen=True, eq=False)
class Leaves:
    """All leaves of the parameters.

    Attributes:
        structure: JAX's, of the pytree.
        trained: in the pytree's order.
        frozen: the index of each other leaf.
        names: of all leaves.
        layout: of the vector.
        dtype: of the vector.
        device: where all of them are.
    """

    structure: Any
    trained: tuple[Leaf, ...]
    frozen: tuple[int, ...]
    names: tuple[str, ...]
    layout: Layout
    dtype: np.dtype[Any]
    device: Any

    def joined(self, trained: Sequence[Any], frozen: Sequence[Any]) -> Any:
        """The pytree with these leaves."""
        every: list[Any] = [None] * len(self.names)
        for leaf, value in zip(self.trained, trained, strict=True):
            every[leaf.index] = value
        for index, value in zip(self.frozen, frozen, strict=True):
            every[index] = value
        return jax.tree_util.tree_unflatten(self.structure, every)

    def trained_of(self, tree: Any, what: str) -> list[Any]:
        """The leaves of a like pytree where the trainable ones are; elsewhere it may have anything, or None.

        Raises:
            UsageError: it is of another structure, or a leaf of another shape.
        """
        try:
            every = self.structure.flatten_up_to(tree)
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(
                f"psgd.jax: {what}: expected the structure of params, got another: {first_line(error)}"
            ) from None
        found = [every[leaf.index] for leaf in self.trained]
        for leaf, value in zip(self.trained, found, strict=True):
            if np.shape(value) != leaf.shape or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
                raise UsageError(
                    f"psgd.jax: {what}: {leaf.name}: expected real numbers of shape {leaf.shape}, got {kind(value)}"
                )
        return found


def find(params: Any, trainable: Any) -> tuple[Leaves, list[jax.Array]]:
    """The leaves, with their layout and the vector's dtype; and the value of each.

    Raises:
        UsageError: a leaf that psgd cannot train, or a mask that does not fit.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(params)
    names = tuple(named(path) or "params" for path, _ in paths)
    values = [array(f"psgd.jax.wrap: {name}", value) for name, (_, value) in zip(names, paths, strict=True)]
    wanted = _mask(params, trainable)
    if not any(wanted):
        got = "none of them trainable: see trainable" if values else "none"
        raise UsageError(f"psgd.jax.wrap: params: expected a pytree with trainable leaves, got {got}")
    devices = {device for value in values for device in value.devices()}
    if len(devices) > 1:
        raise UsageError(
            f"psgd.jax.wrap: params: expected all leaves on one device, got {len(devices)}: use jax.device_put"
        )
    for name, value, trains in zip(names, values, wanted, strict=True):
        if trains:
            _check(name, value)
    chosen = [index for index, trains in enumerate(wanted) if trains]
    double = [index for index in chosen if values[index].dtype == jnp.float64]
    if double and len(double) < len(chosen):
        raise UsageError(
            "psgd.jax.wrap: expected float64 in all trainable leaves or none, got it in "
            f"{names[double[0]]!r} only: convert them with astype"
        )
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"psgd.jax.wrap: expected a path of its own for each leaf, got two of {repeated[0]!r}")
    layout = Layout([(names[index], values[index].shape) for index in chosen])
    trained = [
        Leaf(names[index], index, values[index].shape, values[index].dtype, at.offset, at.stop)
        for index, at in zip(chosen, layout.parameters, strict=True)
    ]
    frozen = tuple(index for index, trains in enumerate(wanted) if not trains)
    dtype = np.dtype(np.float64 if double else np.float32)
    return Leaves(structure, tuple(trained), frozen, names, layout, dtype, devices.pop()), values


def named(path: Sequence[Any]) -> str:
    """A path in a pytree, with points between."""
    parts = []
    for key in path:
        part = next((getattr(key, each) for each in ("key", "name", "idx") if hasattr(key, each)), key)
        parts.append(str(part))
    return ".".join(parts)


def array(where: str, value: Any) -> jax.Array:
    """A leaf as an array of JAX.

    Raises:
        UsageError: it cannot be one.
    """
    if isinstance(value, jax.core.Tracer):
        raise UsageError(f"{where}: expected an array, got a tracer: call this outside of jit and grad")
    try:
        made = value if isinstance(value, jax.Array) else jnp.asarray(np.asarray(value))
    except (TypeError, ValueError):
        raise UsageError(
            f"{where}: expected an array, got {type(value).__name__}: keep functions and texts out of the pytree"
        ) from None
    if made.is_deleted():
        raise UsageError(f"{where}: expected an array, got one that was deleted, as a donated one is: pass a copy")
    if jnp.issubdtype(made.dtype, jax.dtypes.extended):
        raise UsageError(
            f"{where}: expected numbers, got {made.dtype}: keep jax.random.key_data of a key, or pass it with the batch"
        )
    return made


def kind(value: Any) -> str:
    """Its dtype and shape, for a message."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return type(value).__name__


def first_line(error: Exception) -> str:
    """What JAX says, without its advice."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")


def _mask(params: Any, trainable: Any) -> list[bool]:
    """Whether each leaf is trained."""
    mask = trainable(params) if callable(trainable) else trainable
    leaves = jax.tree_util.tree_leaves(mask)
    if wrong := [each for each in leaves if not isinstance(each, (bool, np.bool_))]:
        raise UsageError(f"psgd.jax.wrap: trainable: expected bools, got {type(wrong[0]).__name__}")
    try:
        full = jax.tree_util.tree_map(lambda each, part: jax.tree_util.tree_map(lambda _: each, part), mask, params)
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"psgd.jax.wrap: trainable: expected bools in the structure of params, or of its top: {first_line(error)}"
        ) from None
    return [bool(each) for each in jax.tree_util.tree_leaves(full)]


def _check(name: str, value: jax.Array) -> None:
    """Refuses a trainable leaf that cannot lie in the vector."""
    if value.dtype not in (jnp.float32, jnp.float64) and str(value.dtype) not in REDUCED:
        raise UsageError(
            f"psgd.jax.wrap: {name}: expected float32, float64, float16 or bfloat16, got {value.dtype}: convert it, "
            "or freeze it with trainable="
        )
    if not value.size:
        raise UsageError(
            f"psgd.jax.wrap: {name}: expected elements, got shape {value.shape}: freeze it with trainable="
        )
