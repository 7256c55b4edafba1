"""Activations by the number of samples."""

from psgd.estimate import activations
from psgd.nn.models import build


def test_the_largest_batch_is_found():
    model = build("mlp", (1, 8, 8), 10, hidden=32)
    for batch in (1, 5, 64):
        needed = activations.count(model, batch)
        assert activations.largest_batch(model, needed, 100) == batch
        assert activations.largest_batch(model, needed - 1, 100) == batch - 1
    assert activations.largest_batch(model, 1 << 40, 100) == 100
