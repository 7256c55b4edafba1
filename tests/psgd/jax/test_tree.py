"""A wrapped pytree: what goes in comes out, and what JAX was handed never changes."""

import numpy as np
import pytest
from mpi4py import MPI

import psgd
from psgd.kernels.errors import UsageError

jax = pytest.importorskip("jax")
jnp = jax.numpy


def params_of(dtype=jnp.float32):
    keys = jax.random.split(jax.random.PRNGKey(1), 2)
    return {"in": {"w": jax.random.normal(keys[0], (3, 4))}, "out": (jax.random.normal(keys[1], (4, 2)).astype(dtype),)}


def loss_fn(params, x):
    return (jnp.tanh(x @ params["in"]["w"]) @ params["out"][0].astype(jnp.float32)).sum()


def batch():
    return np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def same(one, other):
    assert jax.tree_util.tree_structure(one) == jax.tree_util.tree_structure(other)
    for a, b in zip(jax.tree_util.tree_leaves(one), jax.tree_util.tree_leaves(other), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def bound(model):
    """A model in vectors of a caller, as inside a block."""
    from psgd.jax.aliases import zeros

    params, grads = zeros(model.layout.size, np.dtype(np.float32)), np.zeros(model.layout.size, np.float32)
    params[:] = model.prepare()
    model.bind(params, grads)
    return params, grads


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_the_same_pytree_comes_back_and_the_gradient_is_that_of_jax(dtype):
    given = params_of(dtype)
    model = psgd.jax.wrap(given, loss_fn)
    same(model.params, given)
    params, grads = bound(model)
    loss, found = model.value_and_grad(batch())
    value, expected = jax.jit(jax.value_and_grad(loss_fn))(given, batch())
    assert loss.dtype == value.dtype
    np.testing.assert_allclose(loss, value, rtol=1e-6)
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(given)
    model.gather()
    for name, got in (("in.w", found["in"]["w"]), ("out.0", found["out"][0])):
        np.testing.assert_array_equal(model.layout.views(grads)[name], np.asarray(got).astype(np.float32))
    rounding = 2.0**-7 if dtype != jnp.float32 else 1e-5
    for got, want in zip(jax.tree_util.tree_leaves(found), jax.tree_util.tree_leaves(expected), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(np.asarray(got, np.float32), np.asarray(want, np.float32), rtol=rounding, atol=1e-6)
    same(model.unflatten(params), given)


def test_leaves_of_few_bits_are_rounded_from_float32():
    model = psgd.jax.wrap(params_of(jnp.bfloat16), loss_fn)
    params, _ = bound(model)
    start = params.copy()
    for _ in range(4):  # steps too short for the leaves to show
        params += 2.0**-14
    ours = model.layout.views(params)["out.0"]
    np.testing.assert_allclose(ours, model.layout.views(start)["out.0"] + 2.0**-12, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(model.params["out"][0]), ours.astype(jnp.bfloat16))
    loss, _ = model.value_and_grad(batch())
    np.testing.assert_allclose(loss, loss_fn(model.params, batch()), rtol=1e-5)


def test_nothing_that_a_loop_holds_changes_with_the_vector():
    def everything(params, x):  # gradients and aux are parameters and the batch themselves
        return (params["a"] * params["b"]).sum() + x.sum(), {"a": params["a"], "all": params, "x": x}

    model = psgd.jax.wrap({"a": jnp.ones(16), "b": jnp.full(16, 2.0)}, everything, has_aux=True)
    params, _ = bound(model)
    (_, aux), grads = model.value_and_grad(jnp.ones(16))
    held = (aux, grads, model.params, model.grads, model.unflatten(params))
    before = jax.tree_util.tree_map(np.array, held)
    params[:] = 7
    same(held, jax.tree_util.tree_map(jnp.asarray, before))
    assert (model.params["a"] == 7).all()
    (_, aux), grads = model.value_and_grad(jnp.ones(16))
    assert (aux["all"]["b"] == 7).all() and (grads["a"] == 7).all()


def test_a_loop_may_change_the_gradient_or_bring_its_own():
    model = psgd.jax.wrap(params_of(), trainable={"in": True, "out": False})
    _, vector = bound(model)
    with pytest.raises(UsageError, match="value_and_grad: expected a loss_fn"):
        model.value_and_grad(batch())
    own = jax.grad(loss_fn)(model.params, batch())
    model.grads = jax.tree_util.tree_map(lambda g: g / 2, own)
    assert model.grads["out"] == (None,)
    model.gather()
    np.testing.assert_array_equal(vector.reshape(-1)[:12], np.asarray(own["in"]["w"] / 2).reshape(-1))
    assert model.grads is None
    with pytest.raises(UsageError, match="step: expected a gradient since the last step"):
        model.gather()


def test_the_copies_are_announced_from_end_to_start():
    model = psgd.jax.wrap(params_of(), loss_fn)
    _, vector = bound(model)
    seen = []
    model.announce(lambda part: seen.append((part, vector[part.start : part.stop].copy())))
    model.value_and_grad(batch())
    model.gather()
    assert [part for part, _ in seen] == [range(16, 32), range(16)]
    np.testing.assert_array_equal(np.concatenate([values for _, values in reversed(seen)]), vector)
    model.value_and_grad(batch())
    model.gather()
    assert len(seen) == 2, "each only once"


def test_unused_leaves_have_a_gradient_of_zero_and_batches_may_be_pytrees():
    params = {"used": jnp.ones(2), "unused": jnp.ones(2)}
    model = psgd.jax.wrap(params, lambda p, batch, *, scale: (p["used"] * batch["x"]).sum() * scale)
    _, vector = bound(model)
    vector[:] = 9
    model.value_and_grad({"x": np.ones(2)}, scale=3.0)
    model.gather()
    assert not model.layout.views(vector)["unused"].any() and (model.layout.views(vector)["used"] == 3).all()


def test_doubles_make_a_vector_of_doubles():
    jax.config.update("jax_enable_x64", True)
    try:
        model = psgd.jax.wrap({"w": np.ones(3)}, lambda p: (p["w"] ** 2).sum())
        assert model.prepare().dtype == np.float64
        with psgd.connect(MPI.COMM_SELF, model, lr=0.25) as ps:
            model.value_and_grad()
            ps.step()
        assert model.params["w"].dtype == jnp.float64 and (model.params["w"] == 0.5).all()
        with pytest.raises(UsageError, match="expected float64 in all trainable leaves or none, got it in 'd' only"):
            psgd.jax.wrap({"d": np.ones(3), "f": np.ones(3, np.float32)})
    finally:
        jax.config.update("jax_enable_x64", False)


def test_what_cannot_be_wrapped_or_connected_is_refused():
    with pytest.raises(UsageError, match="final_state: expected one of average, broadcast, local, got 'mean'"):
        psgd.jax.wrap(params_of(), loss_fn, final_state="mean")
    with pytest.raises(UsageError, match="loss_fn: expected a function, got float"):
        psgd.jax.wrap(params_of(), 1.0)
    model = psgd.jax.wrap(params_of(), loss_fn)
    with (
        psgd.connect(MPI.COMM_SELF, model),
        pytest.raises(UsageError, match="the pytree is being trained in another block"),
    ):
        psgd.connect(MPI.COMM_SELF, model)
    psgd.connect(MPI.COMM_SELF, model)
    for params in (params_of(), jnp.ones(3), [np.ones(2)]):
        with pytest.raises(UsageError, match=r"wrap it with psgd.jax.wrap\(params, loss_fn\)"):
            psgd.connect(MPI.COMM_SELF, params)
