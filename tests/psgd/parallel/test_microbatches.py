"""Batches in microbatches: every sample once, all of one size but the last."""

import pytest

from psgd.parallel.microbatches import Batch


@pytest.mark.parametrize(("samples", "size"), [(1, 1), (10, 3), (9, 3), (2, 5), (7, 1)])
def test_every_sample_is_in_one_microbatch(samples, size):
    batch = Batch(samples, size, None, None)
    parts = [batch.part(k) for k in range(batch.microbatches)]
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(samples))
    assert all(batch.count(k) == size for k in range(batch.microbatches - 1))
    assert 1 <= batch.count(batch.microbatches - 1) <= size
