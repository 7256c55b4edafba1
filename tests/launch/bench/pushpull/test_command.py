"""`psgd bench pushpull`: wrong options, a real run alone and under mpiexec, and a failed verification."""

import json

import numpy as np
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


@pytest.mark.parametrize(
    "arguments",
    [
        ("--sizes", "4XiB"),
        ("--sizes", ""),
        ("--sizes", "6"),
        ("--servers", "0"),
        ("--workers", "0"),
        ("--repeats", "0"),
        ("--repeats", "many"),
        ("--nothing",),
        ("surplus",),
    ],
)
def test_wrong_options(psgd_command, arguments):
    result = psgd_command("bench", "pushpull", *arguments, timeout=30)
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith("psgd: error: ")


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


@pytest.mark.ranks(2)
def test_verification_can_fail(comm):
    import psgd
    from psgd.launch.bench.pushpull import ranks

    ranks._verify(comm, 1000, 1)
    honest = psgd.connect

    def twice(comm, params, *, lr, **options):
        return honest(comm, params, lr=2 * lr, **options)

    ranks.psgd.connect = twice
    try:
        with pytest.raises(psgd.Error, match="parameters are wrong"):
            ranks._verify(comm, 1000, 1)
    finally:
        ranks.psgd.connect = honest


def test_default_repeats():
    from psgd.launch.bench.pushpull.ranks import default_repeats

    assert [default_repeats(n) for n in (4, 2**20, 2**26, 2**40)] == [2000, 512, 20, 20]


def test_gradients_are_dyadic_and_disjoint():
    from psgd.launch.bench.pushpull.ranks import _gradient

    parts = [_gradient(101, worker, 3) for worker in range(3)]
    assert all(part.dtype == np.float32 for part in parts)
    np.testing.assert_array_equal(sum(parts), _gradient(101, 0, 1))
    assert sum((part != 0).astype(int) for part in parts).max() == 1
