"""What `psgd bench sharded` verifies: other parameters, and other bytes, are found on all ranks."""

import types

import numpy as np
import pytest

from psgd.kernels.errors import Error


@pytest.mark.ranks(2)
def test_what_is_wrong_is_found(comm):
    from psgd.launch.bench.sharded import ranks

    whole = np.arange(10, dtype=np.float32)
    other = whole + (comm.rank == 1) * np.float32(1e-6)
    same, wrong = (types.SimpleNamespace(whole=lambda values=values: values) for values in (whole, other))
    rows = [
        {"stage": stage, "parameters": 10, "bytes_moved": vectors * 20.0} for stage, vectors in enumerate(ranks.VECTORS)
    ]
    ranks.verify(comm, [same] * 4, rows)
    with pytest.raises(Error, match="stage 2: expected the parameters of allreduce"):
        ranks.verify(comm, [same, same, wrong, same], rows)
    rows[3]["bytes_moved"] += 0.5
    with pytest.raises(Error, match="stage 3: expected 120 bytes a step"):
        ranks.verify(comm, [same] * 4, rows)
