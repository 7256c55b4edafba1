"""Buckets of a gradient: sums over workers and steps, weighed by samples, and what may be started when."""

import os
import subprocess
import sys

import numpy as np
import pytest

from psgd.collectives import Communicator
from psgd.kernels.errors import UsageError
from psgd.strategies import buckets
from psgd.strategies.buckets import Buckets

N = 40_000
MOST_MODULES = 62


def sum_of(made, samples):
    """Ends a step, and what it gives."""
    made.launch(samples)
    if made.overlaps:
        made.wait()
    else:
        made.reduce()
    made.clear()
    return made.sum.copy()


def with_threads(body):
    """Runs it with a progress thread and buckets of 16384 elements."""
    before = buckets.BUCKET_BYTES
    buckets.BUCKET_BYTES, os.environ["PSGD_PROGRESS"] = 64 << 10, "1"
    try:
        body()
    finally:
        buckets.BUCKET_BYTES = before
        del os.environ["PSGD_PROGRESS"]


@pytest.mark.ranks(1, 3)
@pytest.mark.parametrize("steps", [1, 3])
def test_the_sum_is_weighed_by_samples(comm, steps):
    """Also over several steps, of which some have no samples and are not read."""
    with Communicator(comm) as workers:
        made = Buckets(workers, np.zeros(7), steps)
        assert not made.overlaps and (made.grads is made.sum) == (steps == 1)
        made.compile()
        for unit in (1, 2):
            made.unit, expected = unit, 0.0
            for step in range(steps):
                samples = 2 * (step % 2 + comm.rank) if steps > 1 else 2 * comm.rank
                made.grads[:] = comm.rank + step + 1 if samples else np.nan
                assert made.overlap(samples) is None
                assert made.add(samples) == (step == steps - 1)
                for rank in range(comm.size):
                    each = 2 * (step % 2 + rank) if steps > 1 else 2 * rank
                    expected += each / unit * (rank + step + 1)
            assert sum_of(made, samples).tolist() == [expected] * 7
        made.free()


@pytest.mark.ranks(2)
def test_a_bucket_starts_when_its_part_is_final(comm):
    def body():
        with Communicator(comm) as workers:
            made = Buckets(workers, np.zeros(N, np.float32), 1)
            assert made.overlaps and len(made._buckets) == 3
            ready = made.overlap(4)
            made.grads[:] = 1 + comm.rank
            ready(range(30_000, N))
            assert made._launched == 0
            ready(range(5000, 30_000))
            assert made._launched == 2
            assert made.add(4)
            assert np.all(sum_of(made, 4) == 4 * 3)
            made.free()

    with_threads(body)


@pytest.mark.ranks(2)
def test_misuse_is_named(comm):
    def body():
        with Communicator(comm) as workers:
            made = Buckets(workers, np.zeros(N, np.float32), 1)
            ready = made.overlap(4)
            with pytest.raises(UsageError, match="a range that ends at 40000"):
                ready(range(100))
            ready(range(N))
            with pytest.raises(UsageError, match="already being reduced"):
                made.overlap(4)
            with pytest.raises(UsageError, match=r"expected the 4 samples .*, got 5"):
                made.add(5)
            made.add(4)
            sum_of(made, 4)
            with pytest.raises(UsageError, match="before each gradient"):
                ready(range(N))
            made.free()

    with_threads(body)


def test_allreduce_loads_few_modules():
    """A reader of the strategy meets no engine of collectives and no codec."""
    code = "import psgd.strategies.allreduce, sys; print(*(m for m in sys.modules if m.partition('.')[0] == 'psgd'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = done.stdout.split()
    assert "psgd.strategies.buckets" in loaded and len(loaded) <= MOST_MODULES, loaded
    assert not [name for name in loaded if name.startswith(("psgd.collectives.dispatch", "psgd.kernels.codecs.t"))]
