"""A state of several ranks."""

import numpy as np
import pytest

from psgd.kernels.errors import UsageError

jax = pytest.importorskip("jax")
jnp = jax.numpy


def of(rank):
    from psgd.jax import carried

    state = {
        "mean": jnp.array([1.0 + rank, 2.0 - rank]),
        "short": jnp.full((3, 1), 0.5 * rank, jnp.bfloat16),
        "count": 10 + rank,
        "flag": jnp.array([rank == 1, False]),
    }
    return carried.flat(state, jax.devices("cpu")[0])


def wait(request):
    while not request.Test():
        pass


@pytest.mark.ranks(3)
def test_the_mean_is_of_those_that_count_and_whole_numbers_are_the_first_ones(comm):
    from psgd.jax import carried

    names, arrays, _ = of(comm.rank)
    device = jax.devices("cpu")[0]
    assert names == ["count", "flag", "mean", "short"]
    got = carried.average(arrays, comm, wait, 1, comm.rank != 0, device)
    assert got[2].tolist() == ([2.5, 0.5] if comm.rank == 1 else [1.0 + comm.rank, 2.0 - comm.rank])
    count, flag, mean, short = carried.broadcast(got, comm, wait, 1, device)
    assert mean.tolist() == [2.5, 0.5] and short.tolist() == [[0.75]] * 3 and short.dtype == jnp.bfloat16
    assert count == 11 and flag.tolist() == [True, False]


def test_packed_bytes_make_new_arrays_also_from_read_only_memory():
    from psgd.jax import carried

    (_, one, _), (_, other, _) = of(1), of(0)
    data = carried.packed(one)
    assert data.dtype == np.uint8 and data.size == 4 + 2 + 8 + 6
    data.flags.writeable = False
    for made, expected in zip(carried.unpacked(other, data, jax.devices("cpu")[0]), one, strict=True):
        assert made.dtype == expected.dtype and (made == expected).all() and made.shape == expected.shape
    assert carried.packed([]).size == 0 and carried.unpacked([], carried.packed([]), None) == []


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"f": len}, "state: f: expected an array"),
        ({"key": jax.random.key(0)}, "state: key: expected numbers, got key"),
    ],
)
def test_what_is_no_array_is_refused(state, message):
    from psgd.jax import carried

    with pytest.raises(UsageError, match=message):
        carried.flat(state, jax.devices("cpu")[0])
