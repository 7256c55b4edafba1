"""The benchmark of cut models: verified rows, and a cut model that is wrong."""

import pytest

from psgd.kernels.errors import Error
from psgd.launch.bench.parallel import cut_mlp
from psgd.parallel.tensor.cut_linear import RowLinear


@pytest.mark.ranks(2, 3)
def test_rows_are_the_same_on_all_ranks(comm):
    rows = list(cut_mlp.measure(comm, [8, 13], 7, 5, 2))
    assert [row["model"] for row in rows] == ["7-8-7", "7-13-7"]
    assert len({str(each) for each in comm.allgather(rows)}) == 1


@pytest.mark.ranks(2)
def test_a_wrong_gradient_is_found(comm):
    right = RowLinear.backward_weights

    def wrong(self, state, grads):
        right(self, state, grads)
        grads[0][0, 0] += 1

    RowLinear.backward_weights = wrong
    try:
        with pytest.raises(Error, match=r"a cut model in float64 is not the whole: .* gradients .* below 1e-10"):
            list(cut_mlp.measure(comm, [8], 7, 5, 1))
    finally:
        RowLinear.backward_weights = right
