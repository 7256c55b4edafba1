"""Limits from made-up timings; a real tuning writes a table that the next communicator goes by."""

import json

import pytest

KIB = 1024


def check(made, expected):
    from psgd.launch.bench.collective.tune import limits

    assert limits(made) == expected


@pytest.mark.ranks(1)
def test_limits(comm):
    # The geometric mean of the sizes between which the fastest changes.
    check([(16, {"a": 1, "b": 2}), (64, {"a": 2, "b": 1})], [[32, "a"], [None, "b"]])
    check([(16, {"ring": 1.0, "slots": 2.0})], [[None, "ring"]])
    # Less than 5 % faster is not enough to follow, 5 % is; and back again only for as much.
    near = [(16, {"a": 1.0, "b": 1.2}), (64, {"a": 1.04, "b": 1.0}), (256, {"a": 1.0, "b": 1.0})]
    check(near, [[None, "a"]])
    check([*near, (1024, {"a": 1.06, "b": 1.0}), (4096, {"a": 0.97, "b": 1.0})], [[512, "a"], [None, "b"]])
    zigzag = [(4**k, {"a": 1 + 0.02 * (k % 2), "b": 1.02 - 0.02 * (k % 2)}) for k in range(1, 9)]
    check(zigzag, [[None, "b"]])


@pytest.mark.ranks(1)
def test_limits_of_inline(comm):
    fast, slow = {"inline": 1.0, "slots": 2.0, "direct": 3.0}, {"slots": 1.0, "direct": 3.0}
    # At most 64 KiB, also where the next size measured is far away.
    check([(64 * KIB, fast), (1024 * KIB, slow)], [[64 * KIB, "inline"], [None, "slots"]])
    check([(4 * KIB, fast), (16 * KIB, {**slow, "inline": 2.0})], [[8 * KIB, "inline"], [None, "slots"]])
    # Never after another one, however fast.
    check([(4, {**slow, "inline": 2.0}), (16, fast)], [[None, "slots"]])
    # Chunks have the same limit, and follow it.
    by_chunks = {**slow, "inline": 2.0, "chunked": 0.5}
    check([(KIB, fast), (4 * KIB, by_chunks)], [[2 * KIB, "inline"], [4 * KIB, "chunked"], [None, "slots"]])
    check([(64 * KIB, by_chunks), (256 * KIB, {**by_chunks, "slots": 1.0})], [[64 * KIB, "chunked"], [None, "slots"]])
    # Never the last: larger calls will come.
    check([(4 * KIB, fast)], [[4 * KIB, "inline"], [None, "slots"]])
    # A timing of what cannot be inline counts for nothing.
    check([(128 * KIB, fast)], [[None, "slots"]])


@pytest.mark.ranks(1)
def test_limits_make_a_table(comm, tmp_path):
    from psgd.collectives.dispatch import tuning
    from psgd.launch.bench.collective.tune import limits

    made = [
        (4, {"inline": 1.0, "ring": 2.0}),
        (KIB, {"inline": 3.0, "ring": 2.0}),
        (KIB**2, {"ring": 2.0, "native": 1}),
    ]
    entry = {"collective": "Allreduce", "ranks": 2, "nodes": 1, "limits": limits(made)}
    tuning.write(tmp_path / "t.json", {**entry, "mpi": "", "date": ""})
    assert tuning.read(tmp_path / "t.json")[0]["limits"] == [[64, "inline"], [32 * KIB, "ring"], [None, "native"]]


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("shared", [True, False])
def test_candidates(comm, shared):
    import os

    from psgd.launch.bench.collective.tune import candidates
    from psgd.launch.bench.problem import BenchOptions

    os.environ["PSGD_SHARED"] = "1" if shared else "0"
    try:
        found = {name: candidates(comm, BenchOptions(name)) for name in ("allreduce", "bcast")}
    finally:
        del os.environ["PSGD_SHARED"]
    if shared:  # one over messages would take registered arrays off their fast path
        assert found["allreduce"] == ["inline", "chunked", "slots", "direct", "native"]
        assert found["bcast"] == ["inline", "slots", "direct", "native"]
    else:
        assert found["allreduce"] == ["ring", "recursive_doubling", "rabenseifner", "native"]
        assert found["bcast"] == ["binomial", "chain", "native"]


@pytest.mark.ranks(3)
def test_candidates_over_several_nodes(comm):
    from harness.oracle import two_nodes

    from psgd.launch.bench.collective.tune import candidates
    from psgd.launch.bench.problem import BenchOptions

    with two_nodes():
        found = {name: candidates(comm, BenchOptions(name)) for name in ("allreduce", "reducescatter")}
    assert found["allreduce"] == ["ring", "recursive_doubling", "rabenseifner", "hierarchical", "native"]
    assert found["reducescatter"] == ["ring", "native"]


@pytest.mark.job
def test_the_next_communicator_goes_by_it(psgd_command, tmp_path):
    table = tmp_path / "tuning.json"
    table.write_text("no table")  # which does not stop a tuning
    env = {"PSGD_TUNING": str(table)}
    arguments = ("--sizes", "1KiB,128KiB", "--repeats", "2", "--json")
    done = psgd_command("bench", "reducescatter", "--tune", *arguments, timeout=100, env=env)
    assert done.returncode == 0, done.stderr
    (entry,) = json.loads(table.read_text())["entries"]
    assert json.loads(done.stdout) == entry
    assert (entry["collective"], entry["ranks"], entry["nodes"]) == ("Reduce_scatter", 2, 1)
    assert entry["limits"][-1][0] is None
    assert entry["mpi"]
    assert len(entry["date"]) == 10

    entry["limits"] = [[64, "native"], [None, "ring"]]
    table.write_text(json.dumps({"format": 1, "entries": [entry]}))
    arguments = ("--sizes", "64,72", "--repeats", "2", "--no-peers", "--json")
    done = psgd_command("bench", "reducescatter", *arguments, timeout=60, env=env)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["algorithm"] for line in done.stdout.splitlines()] == ["native"] * 3 + ["ring"] * 3


@pytest.mark.job
@pytest.mark.one_mpi
def test_table_of_timings(psgd_command, tmp_path):
    table = tmp_path / "folder" / "tuning.json"
    arguments = ("--tune", "--sizes", "4B", "--repeats", "2")
    done = psgd_command("bench", "bcast", *arguments, timeout=60, env={"PSGD_TUNING": str(table)})
    assert done.returncode == 0, done.stderr
    head, row, said, last = done.stdout.splitlines()
    assert head.split()[0] == "size"
    assert row.split()[:2] == ["4", "B"]
    assert said.startswith("Bcast on 2 ranks: ")
    assert last == f"wrote {table}"
    assert json.loads(table.read_text())["entries"][0]["collective"] == "Bcast"


@pytest.mark.job
@pytest.mark.one_mpi
def test_a_table_that_cannot_be_written(psgd_command, tmp_path):
    (tmp_path / "file").write_text("")
    env = {"PSGD_TUNING": str(tmp_path / "file" / "tuning.json")}
    arguments = ("--tune", "--sizes", "4B", "--repeats", "2")
    done = psgd_command("bench", "bcast", *arguments, timeout=60, env=env)
    assert done.returncode == 2
    assert done.stderr.count("psgd: error: --tune: ") == 1
    assert "Traceback" not in done.stderr
