"""Ranks without samples do in their first pass what another one tells them."""

import numpy as np
import pytest

from psgd.kernels.errors import UsageError

torch = pytest.importorskip("torch")
from psgd.torch.sharded.first_pass import FirstPass  # noqa: E402

DONE = [("gather", 3), ("make", 3), ("reduce", 3), ("leave", 3)]


@pytest.mark.ranks(3, timeout=60)
def test_those_without_samples_follow_the_first_that_has_some(comm):
    first = FirstPass(comm, lambda request: request.Wait())
    assert not first.begin(0) and not first.mixed, "nobody has any"
    assert first.begin(2) and not first.mixed, "all have some"
    assert first.begin([0, 4, 4][comm.rank]) and first.mixed
    if comm.rank == 0:
        assert list(first.follow()) == DONE
        assert list(first.follow()) == [("gather", np.int64(1))]
        return
    for what, unit in DONE:
        first.tell(what, unit)
    first.tell("end")
    if comm.rank == 1:
        first.tell("gather", 1)
    else:
        with pytest.raises(UsageError, match="rank 1 is at gather of unit 1, this one at gather of unit 2"):
            first.tell("gather", 2)
    first.tell("end")
