"""The table and the JSON of one made-up row."""

from psgd.launch.bench.collective.table import (
    GLOO,
    MPI_BEST,
    MPI_IN_PLACE,
    MPI_NAME,
    PRIVATE,
    REGISTERED,
    REGISTERED_IN_PLACE,
    MarkdownTable,
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


def test_mpi_at_its_best_is_named_below_the_table_and_in_markdown():
    row = Row(2**20, 2, 10, "Open MPI 5", {**SECONDS, MPI_BEST: 3e-3}, USED, "tuned 4 ring")
    table = Table(OPTIONS, row, [row.nbytes])
    assert max(map(len, [*table.head().splitlines(), table.line(row)])) <= 120
    assert "3 ms" in table.line(row) and "1.50" in table.line(row)
    assert table.foot([row, ROW]) == "MPI at its best: tuned 4 ring (1 MiB)"
    assert objects(row, OPTIONS)[0]["mpi_best_setting"] == "tuned 4 ring"
    assert table.foot([ROW]) == ""
    written = MarkdownTable(OPTIONS, row, [row.nbytes])
    head, line = written.head().splitlines()[0], written.line(row)
    assert head.count("|") == line.count("|")
    cells = [cell.strip() for cell in line.split("|")]
    assert cells[1:3] == ["2", "1 MiB"] and "3 ms (tuned 4 ring)" in cells and written.foot([row]) == ""
