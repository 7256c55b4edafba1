"""`psgd bench pushpull`: wrong options, and a real run alone and under mpiexec."""

import json

import pytest

KEYS = {
    "nbytes",
    "servers",
    "workers",
    "seconds",
    "gbs",
    "raw_mpi_seconds",
    "raw_mpi_update_seconds",
    "torch_rpc_seconds",
    "repeats",
    "verified",
    "mpi",
}


WRONG_OPTIONS = [
    ("--sizes", "4XiB"),
    ("--sizes", ""),
    ("--sizes", "6"),
    ("--servers", "0"),
    ("--workers", "0"),
    ("--repeats", "0"),
    ("--repeats", "many"),
    ("--nothing",),
    ("surplus",),
]


def test_wrong_options(refused):
    refused(*[("bench", "pushpull", *words) for words in WRONG_OPTIONS], imports=["psgd.launch.bench"])


@pytest.mark.job
def test_wrong_number_of_ranks(psgd_command):
    result = psgd_command("bench", "pushpull", n=3, timeout=60)
    assert result.returncode != 0
    assert result.stderr.count("psgd: error: bench pushpull: expected a job of 2 ranks") == 1


def check(lines, sizes, servers=1, workers=1):
    rows = [json.loads(line) for line in lines]
    assert [row["nbytes"] for row in rows] == sizes
    for row in rows:
        assert row.keys() == KEYS
        assert row["verified"] is True
        assert (row["servers"], row["workers"]) == (servers, workers)
        assert min(row["seconds"], row["raw_mpi_seconds"], row["raw_mpi_update_seconds"]) > 0
        assert row["gbs"] == pytest.approx(2 * row["nbytes"] / row["seconds"] / 1e9)
    return rows


@pytest.mark.job
def test_alone(psgd_command):
    arguments = ("--sizes", "4KiB,1MiB", "--repeats", "10", "--json")
    result = psgd_command("bench", "pushpull", *arguments, timeout=100)
    assert result.returncode == 0, result.stderr
    rows = check(result.stdout.splitlines(), [4096, 2**20])
    try:
        import torch  # noqa: F401
    except ImportError:
        assert all(row["torch_rpc_seconds"] is None for row in rows)
    else:
        assert all(row["torch_rpc_seconds"] > 0 for row in rows)


@pytest.mark.job
@pytest.mark.parametrize(("servers", "workers"), [(2, 1), (1, 2), (2, 3)])
def test_more_ranks_as_ranks_of_a_job(psgd_command, servers, workers):
    result = psgd_command(
        "bench",
        "pushpull",
        *(
            "--sizes",
            "252,64KiB",
            "--repeats",
            "5",
            "--servers",
            str(servers),
            "--workers",
            str(workers),
            "--json",
        ),
        n=servers + workers,
        timeout=100,
    )
    assert result.returncode == 0, result.stderr
    check(result.stdout.splitlines(), [252, 65536], servers, workers)


@pytest.mark.job
def test_table(psgd_command):
    result = psgd_command("bench", "pushpull", "--sizes", "4KiB", "--repeats", "5", timeout=100)
    assert result.returncode == 0, result.stderr
    head, row, foot, *_ = result.stdout.splitlines()
    assert head.split()[0] == "size"
    assert row.split()[:2] == ["4", "KiB"]
    assert "verified" in foot
