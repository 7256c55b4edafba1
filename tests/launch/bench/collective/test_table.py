"""The table and the JSON of one made-up row."""

from psgd.launch.bench.collective.table import (
    GLOO,
    MPI_IN_PLACE,
    MPI_NAME,
    PRIVATE,
    REGISTERED,
    REGISTERED_IN_PLACE,
    Row,
    Table,
    objects,
)
from psgd.launch.bench.problem import BenchOptions

SECONDS = {PRIVATE: 2e-3, REGISTERED: 1e-3, REGISTERED_IN_PLACE: 5e-4, MPI_NAME: 4e-3, MPI_IN_PLACE: 1e-3, GLOO: 0.25}
USED = {PRIVATE: ("slots", "shm"), REGISTERED: ("direct", "shm"), REGISTERED_IN_PLACE: ("direct", "shm")}
ROW = Row(2**20, 2, 10, "Open MPI 5", SECONDS, USED)
OPTIONS = BenchOptions("allreduce")


def test_bandwidth():
    assert ROW.bandwidth("allreduce", PRIVATE) == 2**20 / 2e-3 / 1e9


def test_objects():
    private, registered, in_place = objects(ROW, OPTIONS)
    assert (private["algorithm"], private["buffers"], private["in_place"]) == ("slots", "private", False)
    assert (registered["seconds"], registered["buffers"]) == (1e-3, "registered")
    assert in_place["in_place"] and in_place["against"]["mpi_in_place"] == 1e-3
    assert private["against"]["gloo"] == 0.25 and private["against"]["nccl"] is None


def test_lines_are_as_long_as_their_head():
    table = Table(OPTIONS, ROW, [ROW.nbytes])
    head, line = table.head().splitlines(), table.line(ROW)
    assert line.split()[:3] == ["1", "MiB", "2"] and line.endswith("slots, direct")
    assert "2.00" in line and "4.00" in line and "125" in line  # MPI and Gloo beside private and registered
    assert len(head) == 2 and max(map(len, [*head, line])) <= 120
    assert head[1].index("algorithm") == line.index("slots")


def test_a_row_without_a_peer_has_a_dash():
    table = Table(OPTIONS, ROW, [ROW.nbytes])
    seconds = {name: value for name, value in SECONDS.items() if name != GLOO}
    cells = table.line(Row(4, 2, 10, "", seconds, USED)).split()
    assert cells.count("-") == 2  # the time and the ratio
