"""Activations by the number of samples."""

import pytest

from psgd.estimate import activations
from psgd.kernels.errors import UsageError
from psgd.nn.models import build


def test_the_largest_batch_is_found():
    model = build("mlp", (1, 8, 8), 10, hidden=32)

    def bytes_of(batch):
        return activations.count(model, batch)

    for batch in (1, 5, 64):
        needed = bytes_of(batch)
        assert activations.largest_batch(bytes_of, needed, 100) == batch
        assert activations.largest_batch(bytes_of, needed - 1, 100) == batch - 1
    assert activations.largest_batch(bytes_of, 1 << 40, 100) == 100


def test_recomputing_is_chosen_by_bytes_of_activations():
    model = build("resmlp", (1, 28, 28), 10, hidden=64)
    plain = activations.count(model, 16)
    assert activations.recomputed(model, None, 16) is model
    everything = activations.count(activations.recomputed(model, "all", 16), 16)
    assert everything < plain
    between = (plain + everything) // 2
    assert everything <= activations.count(activations.recomputed(model, f"{between}B", 16), 16) <= between
    with pytest.raises(UsageError, match="take a smaller batch"):
        activations.recomputed(model, "10B", 16)
