"""What a loss function returns, checked when it is compiled."""

import re

import numpy as np
import pytest

import psgd
from psgd.kernels.errors import UsageError

jax = pytest.importorskip("jax")
jnp = jax.numpy


def gradient_of(loss_fn, state=None, has_aux=False):
    model = psgd.jax.wrap({"w": jnp.arange(1.0, 4.0)}, loss_fn, state=state, has_aux=has_aux)
    return model, model.value_and_grad(jnp.ones(3))


def test_every_form_of_a_loss_function():
    def value(params, x):
        return (params["w"] ** 2 * x).sum()

    forms = {
        (False, False): value,
        (False, True): lambda p, x: (value(p, x), {"seen": x}),
        (True, False): lambda p, s, x: (value(p, x), s + 1),
        (True, True): lambda p, s, x: ((value(p, x), s + 1), {"seen": x}),
    }
    for (has_state, has_aux), loss_fn in forms.items():
        model, (given, grads) = gradient_of(loss_fn, jnp.zeros(2) if has_state else None, has_aux)
        loss, aux = given if has_aux else (given, {"seen": np.ones(3)})
        assert loss == 14 and grads["w"].tolist() == [2, 4, 6] and (aux["seen"] == 1).all()
        assert model.state.tolist() == [1, 1] if has_state else model.state is None


def test_it_is_compiled_once_for_each_shape():
    seen = []

    def loss_fn(params, state, x, scale):
        seen.append(x.shape)
        return (params["w"].astype(jnp.float32).sum() * x).mean() * scale, {"n": state["n"] + 1}

    model = psgd.jax.wrap({"w": jnp.ones(3, jnp.bfloat16)}, loss_fn, state={"n": 0})
    for size in (4, 4, 2, 4, 2):
        model.value_and_grad(np.ones(size, np.float32), scale=2.0)
    assert seen == [(4,), (2,)] and model.state["n"] == 5


def test_a_random_key_may_come_with_the_batch():
    model = psgd.jax.wrap({"w": jnp.ones(8)}, lambda p, key: (p["w"] * jax.random.bernoulli(key, 0.5, (8,))).sum())
    masks = [model.value_and_grad(jax.random.key(seed))[1]["w"].tolist() for seed in (1, 2, 1)]
    assert masks[0] == masks[2] != masks[1] and set(masks[0]) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("loss_fn", "state", "has_aux", "message"),
    [
        (lambda p, x: p["w"] * x, None, False, r"a loss of one real number, got float32 of shape \(3,\)$"),
        (lambda p, x: (p["w"].sum(), x), None, False, "got tuple of 2: pass has_aux=True, or state$"),
        (lambda p, x: x.astype(int).sum(), None, False, r"a loss of one real number, got int32 of shape \(\)"),
        (lambda p, x: None, None, False, "a loss of one real number, got NoneType"),
        (lambda p, x: p["w"].sum(), None, True, r"a pair with aux, got float32 of shape \(\)"),
        (lambda p, s, x: p["w"].sum(), {"m": np.ones(2)}, False, "a pair with the new state, got float32"),
        (lambda p, s, x: (p["w"].sum(), {}), {"m": np.ones(2)}, False, "expected a new state of the structure"),
        (
            lambda p, s, x: (p["w"].sum(), {"m": x}),
            {"m": np.ones(2, np.float32)},
            False,
            r"state: m: expected float32 of shape \(2,\) as before, got float32 of shape \(3,\)",
        ),
        (
            lambda p, s, x: (p["w"].sum(), {"m": s["m"].astype(jnp.bfloat16)}),
            {"m": np.ones(2, np.float32)},
            False,
            r"state: m: expected float32 of shape \(2,\) as before, got bfloat16",
        ),
    ],
)
def test_answers_of_another_kind_are_refused_in_one_line(loss_fn, state, has_aux, message):
    with pytest.raises(UsageError) as refused:
        gradient_of(loss_fn, state, has_aux)
    assert re.search(message, str(refused.value)) and "\n" not in str(refused.value), str(refused.value)
