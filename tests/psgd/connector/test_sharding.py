"""`shard` of `psgd.connect`: what does not go with it is refused, on all ranks, in one line."""

import numpy as np
import pytest

import psgd
from psgd.kernels.errors import UsageError


@pytest.mark.ranks(2)
def test_what_does_not_go_with_it_is_refused(comm):
    params = np.zeros(100, np.float32)
    for options, text in [
        ({"shard": 4}, "shard: expected 0 or 1"),
        ({"strategy": "sync"}, "shard: expected strategy allreduce"),
        ({"compress": "topk"}, "compress topk: not with shard"),
    ]:
        with pytest.raises(UsageError, match=text):
            psgd.connect(comm, params, **{"strategy": "allreduce", "shard": 1} | options)


@pytest.mark.ranks(1)
def test_a_single_worker_is_refused(comm):
    with pytest.raises(UsageError, match="a single worker has nobody to share with"):
        psgd.connect(comm, np.zeros(100, np.float32), strategy="allreduce", shard=1)
