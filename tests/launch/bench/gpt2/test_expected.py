"""The estimate of the GPT-2 that is taught: too much for one GPU, little for two that share it."""

from dataclasses import replace

import pytest

from psgd.launch.bench.gpt2 import expected
from psgd.launch.bench.gpt2.trial import GPT2Trial

GPT2 = GPT2Trial(48, 1600, 25, 1024, 50257, 32, 4, 3, 8, 2, "cuda")


def test_one_gpu_of_80_gb_is_refused():
    said = "\n".join(expected.lines(GPT2))
    assert said.startswith("1,557,611,200 parameters") and "80 GB are there: the batch does not fit" in said
    assert "2 ranks, --shard 3 --recompute all, 4 passes of 4:" in said


def test_two_gpus_keep_half_of_sixteen_bytes_a_parameter():
    small = replace(GPT2, layers=2, width=64, heads=4, context=32, vocabulary=300)
    model = expected.recomputing(small, expected.model_of(small))
    rows = expected.of_trial(small, model).rows
    held = rows["parameters"] + rows["gradients"] + rows["optimizer state"]
    assert held == pytest.approx(8 * model.layout.size, rel=0.01)
    assert "sum of gradients" not in rows, "each pass is reduced by itself"
    assert rows["gradients of shared parameters"] == 300 * 64 * 4
