"""Which leaves have a place in the vector, and which pytrees are refused."""

from collections import namedtuple

import numpy as np
import pytest

from psgd.kernels.errors import UsageError

jax = pytest.importorskip("jax")
jnp = jax.numpy

Pair = namedtuple("Pair", "first second")


def find(params, trainable=True):
    from psgd.jax.leaves import find

    return find(params, trainable)


def test_names_are_paths_and_order_is_that_of_the_pytree():
    params = {"b": [jnp.ones((3, 2)), None, (jnp.zeros(2), 1.5)], "a": Pair(np.ones(1), jnp.ones((2, 2)))}
    leaves, values = find(params)
    assert leaves.names == ("a.first", "a.second", "b.0", "b.2.0", "b.2.1")
    assert [(p.name, p.offset, p.shape) for p in leaves.layout.parameters] == [
        ("a.first", 0, (1,)),
        ("a.second", 16, (2, 2)),
        ("b.0", 32, (3, 2)),
        ("b.2.0", 48, (2,)),
        ("b.2.1", 64, ()),
    ]
    again = leaves.joined(values, [])
    assert jax.tree_util.tree_structure(again) == jax.tree_util.tree_structure(params)
    assert isinstance(again["a"], Pair) and again["b"][2][1] == 1.5
    assert find(jnp.ones(3))[0].names == ("params",)


@pytest.mark.parametrize(
    "trainable",
    [
        {"a": False, "b": {"c": True, "d": False}},
        {"a": False, "b": {"c": np.True_, "d": False}},
        lambda params: jax.tree_util.tree_map(lambda leaf: leaf.ndim == 2, params),
    ],
)
def test_a_mask_says_what_is_trained(trainable):
    params = {"a": jnp.arange(3), "b": {"c": jnp.ones((2, 2)), "d": jnp.ones(2)}}
    leaves, _ = find(params, trainable)
    assert [leaf.name for leaf in leaves.trained] == ["b.c"] and leaves.frozen == (0, 2)
    assert leaves.trained[0].offset == 0 and leaves.layout.size == 16


def test_a_mask_may_be_that_of_the_top():
    params = {"a": jnp.arange(3), "b": {"c": jnp.ones((2, 2)), "d": jnp.ones(2)}}
    leaves, _ = find(params, {"a": False, "b": True})
    assert [leaf.name for leaf in leaves.trained] == ["b.c", "b.d"]


def test_gradients_are_taken_from_a_pytree_that_may_have_anything_in_frozen_places():
    leaves, _ = find({"a": jnp.ones(2), "b": jnp.ones(3)}, {"a": False, "b": True})
    for frozen in (None, jnp.ones(7)):
        (taken,) = leaves.trained_of({"a": frozen, "b": np.arange(3.0)}, "grads")
        np.testing.assert_array_equal(taken, [0, 1, 2])


@pytest.mark.parametrize(
    ("grads", "message"),
    [
        ([np.ones(3)], "grads: expected the structure of params, got another: Expected dict"),
        ({"a": np.ones(2)}, "grads: expected the structure of params, got another: Dict key mismatch"),
        ({"a": None, "b": np.ones(2)}, r"grads: b: expected real numbers of shape \(3,\), got float64 of shape \(2,\)"),
        ({"a": None, "b": np.arange(3)}, r"grads: b: expected real numbers of shape \(3,\), got int64"),
        ({"a": None, "b": None}, r"grads: b: expected real numbers of shape \(3,\), got NoneType"),
    ],
)
def test_gradients_of_another_kind_are_refused(grads, message):
    leaves, _ = find({"a": jnp.ones(2), "b": jnp.ones(3)}, {"a": False, "b": True})
    with pytest.raises(UsageError, match=message):
        leaves.trained_of(grads, "grads")


def donated():
    array = jnp.ones(2)
    array.delete()
    return find({"w": array})


def in_jit():
    def inner(x):
        find({"w": x})
        return x

    return jax.jit(inner)(jnp.ones(2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: find({}), "params: expected a pytree with trainable leaves, got none$"),
        (lambda: find({"w": jnp.ones(2)}, False), "got none of them trainable: see trainable"),
        (lambda: find({"w": jnp.arange(2)}), "w: expected float32, float64, float16 or bfloat16, got int32: convert"),
        (lambda: find({"w": jnp.ones(2, jnp.complex64)}), "w: expected float32, .* got complex64"),
        (lambda: find({"w": np.ones(2), "f": len}), "f: expected an array, got builtin_function_or_method"),
        (lambda: find({"w": np.ones(2), "f": "tanh"}), "f: expected an array, got str: keep functions"),
        (lambda: find({"w": np.ones(2), "k": jax.random.key(0)}), r"k: expected numbers, got key<fry>"),
        (lambda: find({"w": jnp.ones((0, 2))}), r"w: expected elements, got shape \(0, 2\): freeze"),
        (lambda: find({"w": jnp.ones(2)}, {"w": 1}), "trainable: expected bools, got int"),
        (lambda: find({"w": jnp.ones(2)}, {"v": True}), "trainable: expected bools in the structure of params"),
        (lambda: find({"a.b": jnp.ones(2), "a": {"b": jnp.ones(2)}}), "a path of its own for each leaf, got two of"),
        (donated, "w: expected an array, got one that was deleted"),
        (in_jit, "w: expected an array, got a tracer"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(make, message):
    with pytest.raises(UsageError, match=message) as refused:
        make()
    assert "\n" not in str(refused.value)
