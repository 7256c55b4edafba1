"""1-bit SGD's quantizer against its definition."""

import numpy as np
import pytest

from psgd.kernels import codecs


@pytest.mark.parametrize("n", [1, 64, 1000, 4096, 10_001])
@pytest.mark.parametrize("block", [64, 4096])
def test_each_block_by_the_definition(n, block):
    rng = np.random.default_rng(n)
    codec = codecs.create("onebit", n, block=block)
    payload = np.empty(codec.max_nbytes(), np.uint8)
    before = np.zeros(n, np.float32)
    for _ in range(4):
        update = rng.standard_normal(n).astype(np.float32)
        said = np.zeros(n, np.float32)
        codec.decode_add(payload[: codec.encode(update, payload)], said)
        whole = before + update
        for start in range(0, n, block):
            part, its = whole[start : start + block].astype(np.float64), said[start : start + block]
            for side in (part >= 0, part < 0):
                if side.any():
                    assert len(set(its[side])) == 1
                    assert its[side][0] == pytest.approx(part[side].mean(), rel=1e-6)
        np.testing.assert_array_equal(codec.residual, whole - said)
        before = codec.residual.copy()


def test_blocks_of_zeros_stay_zero_and_other_zeros_do_not_drift():
    n, rng = 256, np.random.default_rng(0)
    codec = codecs.create("onebit", n, block=64)
    payload, total = np.empty(codec.max_nbytes(), np.uint8), np.zeros(n, np.float32)
    for _ in range(500):
        update = rng.standard_normal(n).astype(np.float32)
        update[64:128] = -0.0
        update[200] = 0.0
        codec.decode_add(payload[: codec.encode(update, payload)], total)
    assert not total[64:128].any() and not codec.residual[64:128].any()
    assert 0 < abs(codec.residual[200]) < 10
    assert total[200] == pytest.approx(-codec.residual[200], abs=1e-3)  # all payloads together
