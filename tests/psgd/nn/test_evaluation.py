"""Samples at once, by device and by tokens."""

import pytest

from psgd.nn.evaluation import EVALUATION_BATCH, evaluated_at_once


@pytest.mark.parametrize(
    ("tokens", "on_cpu", "on_gpu", "in_pieces", "in_pieces_on_gpu"),
    [(1, EVALUATION_BATCH, 1000, 2000, 4000), (128, 3, 256, 15, 1024), (1 << 20, 1, 1, 1, 1)],
)
def test_samples_go_by_their_tokens(tokens, on_cpu, on_gpu, in_pieces, in_pieces_on_gpu):
    assert evaluated_at_once(tokens) == on_cpu
    assert evaluated_at_once(tokens, "cuda") == on_gpu
    assert evaluated_at_once(tokens, in_pieces=True) == in_pieces
    assert evaluated_at_once(tokens, "cuda", in_pieces=True) == in_pieces_on_gpu
