"""JAX's arrays in a vector's own memory, or copies of it."""

import sys

import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy


def leaves():
    from psgd.jax import leaves

    with jax.default_device(jax.devices("cpu")[0]):
        return leaves.find({"a": jnp.ones(3), "b": 2.0, "c": jnp.ones((2, 2), jnp.bfloat16)}, True)[0]


def test_arrays_lie_in_the_vector_and_change_with_it():
    from psgd.jax.aliases import Aliases, zeros

    tree, twice = leaves(), jax.jit(lambda arrays: [2 * a for a in arrays])
    vector = zeros(tree.layout.size, tree.dtype)
    aliases = Aliases(vector, tree.trained, tree.device)
    assert aliases.shared and vector.ctypes.data % 64 == 0 and not vector.any()
    for value in (1, 2):
        vector[:] = value
        for array, leaf in zip(twice(aliases.arrays()), tree.trained, strict=True):
            assert array.shape == leaf.shape and array.dtype == jnp.float32 and (array == 2 * value).all()


@pytest.mark.parametrize("how", ["between", "read-only"])
def test_memory_that_jax_does_not_take_is_copied_each_time(how):
    from psgd.jax.aliases import Aliases, zeros

    tree = leaves()
    memory = zeros(tree.layout.size + 16, tree.dtype)
    vector = memory[1 : 1 + tree.layout.size] if how == "between" else memory[: tree.layout.size]
    vector.flags.writeable = how == "between"
    aliases = Aliases(vector, tree.trained, tree.device)
    assert not aliases.shared
    for value in (1, 2):
        memory[:] = value
        before = aliases.arrays()
        memory[:] = 0
        assert all((array == value).all() for array in before), "it is a copy"


OTHER_DEVICE = """
import jax, numpy as np, psgd
from mpi4py import MPI

def loss(params, x):
    return ((x @ params["w"] + params["b"]) ** 2).mean()

def train(device):
    params = jax.device_put({"w": np.ones((4, 2), np.float32), "b": np.ones(2, np.float32)}, device)
    model = psgd.jax.wrap(params, loss)
    with psgd.connect(MPI.COMM_WORLD, model, lr=0.1) as ps:
        for step in range(3):
            value, grads = model.value_and_grad(np.full((3, 4), 0.1 * step, np.float32))
            assert grads["w"].devices() == {device}
            ps.step(3, float(value))
    assert model.params["w"].devices() == {device}
    return np.asarray(model.params["w"])

first, second = jax.devices("cpu")
np.testing.assert_array_equal(train(second), train(first))
assert (train(first) != 1).all()
try:
    psgd.jax.wrap({"a": jax.device_put(1.0, first), "b": jax.device_put(1.0, second)}, loss)
except psgd.UsageError as error:
    print(error)
"""


@pytest.mark.job
@pytest.mark.one_mpi
def test_leaves_on_another_device_are_copied_there(job, tmp_path):
    (tmp_path / "other.py").write_text(OTHER_DEVICE)
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    said = job(None, [sys.executable, str(tmp_path / "other.py")], env=env, check=True, timeout=60).stdout
    assert said == "psgd.jax.wrap: params: expected all leaves on one device, got 2: use jax.device_put\n"
