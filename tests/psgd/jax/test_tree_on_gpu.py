"""Pytrees whose leaves are on a GPU: trained as on the host."""

import numpy as np
import pytest

import psgd

jax = pytest.importorskip("jax")
jnp = jax.numpy
pytestmark = pytest.mark.gpu


def gpu():
    try:
        return jax.devices("gpu")[0]
    except RuntimeError as error:
        pytest.skip(f"no GPU for JAX: {error}")


def loss(params, state, x, y):
    hidden = jnp.tanh(x @ params["first"].astype(jnp.float32) + params["bias"])
    new = {"mean": 0.9 * state["mean"] + 0.1 * hidden.mean(0)}
    return ((hidden @ params["second"] - y) ** 2).mean(), new


def trained(comm, device, strategy, **options):
    rng = np.random.default_rng(comm.rank)
    sizes = {"first": (5, 7), "bias": (7,), "second": (7, 3)}
    params = {name: jnp.asarray(rng.normal(size=shape) / 2, jnp.float32) for name, shape in sizes.items()}
    params["first"] = params["first"].astype(jnp.bfloat16)
    params, state = jax.device_put((params, {"mean": jnp.zeros(7)}), device)
    model = psgd.jax.wrap(params, loss, state=state)
    with (
        jax.default_matmul_precision("highest"),
        psgd.connect(comm, model, strategy=strategy, lr=0.05, rule="momentum", **options) as ps,
    ):
        for clock in range(4):
            rng = np.random.default_rng([ps.worker, clock])
            x, y = rng.normal(size=(6, 5)).astype(np.float32), rng.normal(size=(6, 3)).astype(np.float32)
            value, grads = model.value_and_grad(x, y)
            assert grads["second"].devices() == {device} and model.state["mean"].devices() == {device}
            ps.step(6, float(value))
    assert all(leaf.devices() == {device} for leaf in jax.tree_util.tree_leaves(model.params))
    return {name: np.asarray(leaf, np.float32) for name, leaf in [*model.params.items(), *model.state.items()]}


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("strategy", ["allreduce", "sync", "averaging", "ssp"])
def test_the_numbers_are_those_of_the_host(comm, strategy):
    device = gpu()
    if comm.size == 3 and strategy == "ssp":
        comm = comm.Split(comm.rank == 2)  # one worker behind a server repeats
    there, here = trained(comm, device, strategy), trained(comm, jax.devices("cpu")[0], strategy)
    for name, value in here.items():
        rounding = 2.0**-8 if name == "first" else 1e-5  # a bfloat16 may be rounded to its neighbour
        np.testing.assert_allclose(there[name], value, rtol=rounding, atol=rounding, err_msg=name)
