"""All-reduce over nodes, two of which are made up of even and odd ranks, against NumPy."""

import pytest
from harness.oracle import check, communicator, two_nodes


@pytest.mark.ranks(2, 3, 5)
@pytest.mark.parametrize(
    ("dtype", "op"), [("float32", "SUM"), ("float64", "mean"), ("int64", "MAX"), ("complex64", "PROD")]
)
def test_it_equals_numpy(comm, dtype, op):
    with two_nodes(), communicator(comm) as c:
        for n in (1, 7, 1023, 4097, 50_021):  # at once and in segments, both on the node and between nodes
            check(c, "Allreduce", n, dtype, op, "hierarchical")


@pytest.mark.ranks(5)
def test_without_shared_memory_or_on_one_node_it_is_refused_or_the_same(comm):
    with communicator(comm) as c:
        names = c.algorithm("Allreduce", 4096)
    assert names != "hierarchical"
    with two_nodes(), communicator(comm) as c:
        assert c.algorithm("Allreduce", 1 << 20) == "hierarchical"
