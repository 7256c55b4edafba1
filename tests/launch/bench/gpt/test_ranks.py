"""What `psgd bench gpt` verifies: losses that are not PyTorch's are found, on all ranks."""

import numpy as np
import pytest

from psgd.data import load
from psgd.kernels.errors import Error

pytest.importorskip("torch")


@pytest.mark.ranks(2, timeout=180)
def test_other_losses_are_found(comm):
    from psgd.launch.bench.gpt import ranks

    task = ranks.Trial(1, 8, 1, 4, "genesis", 3, 5, 1)
    data, rows = load("genesis", 4), np.arange(100)
    seen = []

    def ours(x, y):
        seen.append(x)
        return 2.0 + comm.rank

    for other, most in ((2.5, 0.0), (2.5001, 1e-4)):
        found = ranks._compare(comm, task, data, rows, lambda x, y, other=other: other, ours, 2e-4)
        assert found == pytest.approx(most)
    np.testing.assert_array_equal(seen[1], data.train.x[6 + 3 * comm.rank : 9 + 3 * comm.rank])
    for wrong in (2.7, float("nan")):
        with pytest.raises(Error, match=r"losses differ by .*expected at most 2e-04; step 1: psgd's loss is 2.5"):
            ranks._compare(comm, task, data, rows, lambda x, y, wrong=wrong: wrong, ours, 2e-4)
