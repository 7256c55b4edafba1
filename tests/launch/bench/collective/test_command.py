"""`psgd bench allreduce` and its like: wrong options, real runs alone and under mpiexec, tables and JSON."""

import json

import numpy as np
import pytest
from harness.oracle import MESSAGES, SHARED

from psgd.launch.bench.collective import table
from psgd.launch.bench.problem import BenchOptions, Problem, bus_factor, whole_nbytes

KEYS = {
    *("collective", "algorithm", "transport", "ranks", "nbytes", "dtype", "seconds", "busbw_gbs", "buffers", "against"),
    *("verified", "mpi", "in_place", "device", "persistent", "graph", "mpi_best_setting"),
}
PEERS = {"mpi", "mpi_best", "mpi_in_place", "mpi_persistent", "gloo", "nccl", "nccl_graph", "torch", "copies"}
NAMES = ("allreduce", "reducescatter", "allgather", "bcast")


WRONG_OPTIONS = [
    ("allreduce", "--sizes", "4XiB"),
    ("allreduce", "--sizes", ""),
    ("bcast", "--ranks", "0"),
    ("bcast", "--ranks", "100000"),
    ("bcast", "--op", "sum"),
    ("allgather", "--algorithm", "rabenseifner"),
    ("allreduce", "--op", "mean", "--dtype", "int32"),
    ("allreduce", "--dtype", "complex64"),
    ("reducescatter", "--buffers", "some"),
    ("reducescatter", "--repeats", "0"),
    ("allreduce", "--plot", "picture.txt"),
    ("allreduce", "--plot", "no/such/picture.png"),
    ("allreduce", "--tune", "--algorithm", "ring"),
    ("allreduce", "--mpiexec-args", "'"),
    ("allreduce", "surplus"),
]


def test_wrong_options(refused):
    refused(*[("bench", *words) for words in WRONG_OPTIONS], imports=["psgd.launch.bench"])


@pytest.mark.one_mpi
def test_help_lists_the_commands(psgd_command):
    result = psgd_command("bench", "--help", timeout=30)
    assert result.returncode == 0
    assert all(f"\n  {name} " in result.stdout for name in NAMES)


@pytest.mark.job
def test_wrong_number_of_ranks_and_an_algorithm_that_is_not_there(psgd_command):
    result = psgd_command("bench", "bcast", "--ranks", "2", n=3, timeout=60)
    assert result.returncode != 0
    assert result.stderr.count("psgd: error: bench bcast: expected a job of 2 ranks (--ranks), got 3") == 1
    arguments = ("--sizes", "1MiB", "--algorithm", "inline", "--no-peers")
    for n in (None, 2):
        result = psgd_command("bench", "bcast", *arguments, n=n, timeout=60)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.count("psgd: error: ") == 1
        assert "Traceback" not in result.stderr


@pytest.mark.job
def test_alone_in_json(psgd_command):
    arguments = ("--sizes", "4B,64KiB", "--repeats", "2", "--json")
    result = psgd_command("bench", "allreduce", *arguments, timeout=100)
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    variants = [("private", False), ("registered", False), ("registered", True)]
    assert [(row["nbytes"], row["buffers"], row["in_place"]) for row in rows] == [
        (nbytes, *variant) for nbytes in (4, 65536) for variant in variants
    ]
    for row in rows:
        assert row.keys() == KEYS
        assert row["against"].keys() == PEERS
        assert (row["collective"], row["ranks"], row["dtype"], row["verified"]) == ("allreduce", 2, "float32", True)
        assert row["against"]["mpi"] > 0
        assert row["against"]["mpi_in_place"] > 0
        assert row["against"]["mpi_best"] > 0 and row["mpi_best_setting"]
        assert row["against"]["mpi_persistent"] is None or row["against"]["mpi_persistent"] > 0
        assert (row["persistent"] is None) == (row["buffers"] != "private") and row["persistent"] != 0
        assert row["busbw_gbs"] == pytest.approx(row["nbytes"] / row["seconds"] / 1e9)  # 2(P-1)/P is 1
    assert {row["algorithm"] for row in rows[:3]} == {"inline"}


@pytest.mark.job
def test_table_and_picture_as_ranks_of_a_job(psgd_command, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "a.png"
    arguments = ("--sizes", "4KiB,4104,64KiB", "--repeats", "2", "--dtype", "float64", "--plot", str(picture))
    result = psgd_command("bench", "reducescatter", *arguments, n=3, timeout=100)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [["size", "private"], ["4104", "B"], ["65544", "B"]]
    assert "verified" in lines[4]
    assert lines[-1] == f"wrote {picture}"
    assert max(map(len, lines)) <= 120
    assert picture.read_bytes().startswith(b"\x89PNG")


def row(collective="allreduce", **others):
    seconds = {
        table.PRIVATE: 2e-6,
        table.REGISTERED: 1e-6,
        table.REGISTERED_IN_PLACE: 5e-7,
        table.MPI_NAME: 3e-6,
        table.MPI_IN_PLACE: 4e-6,
        table.GLOO: 1e-3,
    }
    used = {
        table.PRIVATE: ("recursive_doubling", "messages"),
        **dict.fromkeys(table.OURS[1:], ("direct", "registered")),
    }
    return table.Row(4000, 4, 7, "An MPI 1.2", {**seconds, **others}, used)


def test_bus_bandwidth_by_hand():
    # 4000 bytes in 2 us are 2 GB/s; 4 ranks.
    expected = {"allreduce": 3.0, "reducescatter": 1.5, "allgather": 1.5, "bcast": 2.0}
    for collective, value in expected.items():
        assert row().bandwidth(collective, table.PRIVATE) == pytest.approx(value)
        assert bus_factor(collective, 1) == (1 if collective == "bcast" else 0)


def test_persistent_calls_have_columns_and_leave_the_width_as_it_is():
    seconds = {table.PERSISTENT: 1.5e-6, table.MPI_PERSISTENT: 2.5e-6}
    with_them = row(**seconds)
    lines = table.Table(BenchOptions("allreduce"), with_them, [4000])
    head, line = lines.head().splitlines(), lines.line(with_them)
    assert head[0].split()[:8] == ["psgd", "psgd", "psgd", "psgd", "MPI", "MPI", "MPI", "Gloo"]
    assert head[1].split()[1:5] == ["private", "persist", "regist.", "inplace"]
    assert line.split()[2:10] == ["2", "µs", "1.5", "µs", "1", "µs", "0.5", "µs"]
    assert max(len(line), *map(len, head)) <= 120
    private, registered, _ = table.objects(with_them, BenchOptions("allreduce"))
    assert (private["persistent"], registered["persistent"]) == (1.5e-6, None)
    assert private["against"]["mpi_persistent"] == 2.5e-6


def test_line_and_objects():
    options = BenchOptions("allreduce")
    lines = table.Table(options, row(), [4000])
    cells = lines.line(row()).split()
    assert cells[:12] == ["4000", "B", "2", "µs", "1", "µs", "0.5", "µs", "3", "µs", "4", "µs"]
    assert cells[12:14] == ["1", "ms"]
    assert cells[14:] == ["1.50", "3.00", "8.00", "500", "3", "recursive_doubling,", ".."]
    width = len(lines.line(row()))
    assert width <= 120
    assert all(len(line) <= width for line in lines.head().splitlines())
    private, registered, in_place = table.objects(row(), options)
    assert private["against"] == {
        "mpi": 3e-6,
        "mpi_best": None,
        "mpi_in_place": 4e-6,
        "mpi_persistent": None,
        "gloo": 1e-3,
        "nccl": None,
        "nccl_graph": None,
        "torch": None,
        "copies": None,
    }
    assert [each["seconds"] for each in (private, registered, in_place)] == [2e-6, 1e-6, 5e-7]
    assert [each["transport"] for each in (private, registered, in_place)] == ["messages", "registered", "registered"]
    assert [each["in_place"] for each in (private, registered, in_place)] == [False, False, True]
    assert private.keys() == KEYS


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint8", "int64", "uint64"])
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "mean"])
def test_values_are_exact_and_differ(dtype, op):
    if op == "mean" and "float" not in dtype:
        pytest.skip("no mean of integers")
    options, size = BenchOptions("allreduce", dtype, op), 3
    problems = [Problem(options, 1000 * np.dtype(dtype).itemsize, rank, size) for rank in range(size)]
    sources = [problem.source() for problem in problems]
    assert all(source.dtype == dtype for source in sources)
    exact = [[int(value) for value in source] for source in sources]  # Python's integers never round
    combine = {"sum": sum, "prod": np.prod, "min": min, "max": max, "mean": lambda values: sum(values) // size}[op]
    expected = [int(combine(list(values))) for values in zip(*exact, strict=True)]
    assert [int(value) for value in problems[1].expected()] == expected
    if op != "prod":
        assert not any(np.array_equal(sources[a], sources[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
        for shift in (1, 16, 64, 333, 512):
            assert not np.array_equal(sources[1][shift:], sources[1][:-shift])
    if dtype in {"float32", "float64", "int64"} and op in {"sum", "min"}:
        assert all(len(set(values)) == 1000 for values in exact)


def test_blocks_of_gathers_and_scatters():
    for collective in ("reducescatter", "allgather"):
        problems = [Problem(BenchOptions(collective, "int32"), 100, rank, 3) for rank in range(3)]
        assert {problem.nbytes for problem in problems} == {108}
        sources = np.array([problem.source() for problem in problems])
        expected = [problem.expected() for problem in problems]
        if collective == "allgather":
            assert all(np.array_equal(each, sources.reshape(-1)) for each in expected)
        else:
            np.testing.assert_array_equal(np.concatenate(expected), sources.sum(axis=0))
    assert whole_nbytes(BenchOptions("bcast", "float64"), 4, 3) == 8
    roots = [Problem(BenchOptions("bcast"), 400, rank, 3) for rank in range(3)]
    assert all(np.array_equal(each.expected(), roots[0].source()) for each in roots)


@pytest.mark.ranks(1)
def test_the_command_knows_all_algorithms(comm):
    from psgd.launch.bench.collective.command import ALGORITHMS
    from psgd.launch.bench.problem import VERBS

    for collective, names in ALGORITHMS.items():
        own = [name for name in names if name != "hierarchical"]
        inline, *others = SHARED
        shared = [inline, "chunked", *others] if collective == "allreduce" else SHARED
        assert own == [*shared, *MESSAGES[VERBS[collective]]] and ("hierarchical" in names) == (
            collective == "allreduce"
        )
