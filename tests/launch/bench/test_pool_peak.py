"""The peak of the pool is that of what was in use at once."""

import pytest
from harness.device import cupy

pytestmark = pytest.mark.gpu


def test_what_was_freed_before_does_not_count_twice():
    xp = cupy()
    from psgd.launch.bench.pool_peak import PoolPeak

    kept = [xp.zeros(1 << 20, xp.uint8)]
    before = xp.get_default_memory_pool().used_bytes()
    peak = PoolPeak()
    for _ in range(3):
        kept.clear()
        kept.append(xp.zeros(3 << 20, xp.uint8))
    found = peak.close()
    assert before + (1 << 20) <= found <= before + (3 << 20)
