"""The table of algorithms: chosen by size, written, read, refused, and the same on all ranks."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from harness.oracle import same_error

from psgd.collectives.algorithms import catalog
from psgd.collectives.dispatch import tuning
from psgd.kernels.errors import UsageError

VERBS = ("Allreduce", "Reduce_scatter", "Reduce_scatter_block", "Allgather", "Allgatherv", "Bcast", "Reduce")


def entry(collective="Allreduce", ranks=2, nodes=1, limits=((1000, "inline"), (None, "ring")), **more):
    return {"collective": collective, "ranks": ranks, "nodes": nodes, "limits": [list(each) for each in limits], **more}


def table(file, *entries):
    file.write_text(json.dumps({"format": tuning.FORMAT, "entries": entries}))
    return file


def test_limits_belong_to_the_lower_range():
    limits = [(0, "a"), (1000, "b"), (np.inf, "c")]
    for nbytes, name in ((0, "a"), (1, "b"), (999, "b"), (1000, "b"), (1001, "c"), (2**60, "c")):
        assert tuning.choose(limits, nbytes) == name
    assert tuning.choose([(10, "a")], 11) == "a"  # the last stands for all that is larger


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("ranks", [2, 3, 8, 64, 1000, 100_000])
def test_built_in_limits_ascend_and_name_what_there_is(verb, ranks):
    from psgd.collectives.shm import layout

    for local, hierarchical in ((True, False), (False, True), (False, False)):
        limits = tuning.built_in(verb, ranks, local, hierarchical)
        bounds, names = [limit for limit, _ in limits], [name for _, name in limits]
        assert bounds == sorted(set(bounds)) and bounds[-1] == np.inf
        assert set(names) <= set(
            catalog.names(verb, *((catalog.NODE,) if local else (catalog.MESSAGES, catalog.NODES)))
        )
        if not hierarchical:
            assert "hierarchical" not in names
        if local:
            assert names[0] == "inline" and 0 < bounds[0] <= layout.INLINE_BYTES


def test_small_reductions_of_many_ranks_go_by_chunks():
    """The more ranks there are, the sooner: what one rank reads alone grows with them, what all read together less."""
    for verb in ("Allreduce", "Reduce"):
        assert [tuning.choose(tuning.built_in(verb, ranks, True, False), 4096) for ranks in (2, 4, 5, 8, 16)] == [
            *("inline", "inline", "chunked", "chunked", "chunked"),
        ]
        bounds = [tuning.built_in(verb, ranks, True, False)[0][0] for ranks in (5, 8, 16)]
        assert bounds == sorted(bounds, reverse=True)
    assert "chunked" not in [name for _, name in tuning.built_in("Reduce_scatter", 8, True, False)]


def test_families():
    assert tuning.family("Reduce_scatter_block") == tuning.family("Reduce_scatter") == "Reduce_scatter"
    assert tuning.family("Allgatherv") == tuning.family("Allgather") == "Allgather"
    assert tuning.family("Allreduce") == "Allreduce" and tuning.family("Bcast") == "Bcast"


def test_where_the_file_lies(monkeypatch, tmp_path):
    monkeypatch.delenv("PSGD_TUNING", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tuning.path() == tmp_path / ".config" / "psgd" / "tuning.json"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "x"))
    assert tuning.path() == tmp_path / "x" / "psgd" / "tuning.json"
    monkeypatch.setenv("PSGD_TUNING", "here.json")
    assert tuning.path() == Path("here.json")
    monkeypatch.setenv("PSGD_TUNING", "")
    assert tuning.path() == tmp_path / "x" / "psgd" / "tuning.json"


def test_written_entries_come_back_and_replace_only_their_own_case(tmp_path):
    file = tmp_path / "deep" / "er" / "tuning.json"
    first = entry(date="2026-11-27", mpi="some MPI")
    cases = [first, entry(ranks=3), entry(nodes=2), entry("Bcast", limits=[(None, "chain")])]
    for each in cases:
        tuning.write(file, each)
    assert tuning.read(file) == cases
    again = entry(limits=[(5, "recursive_doubling"), (70_000, "rabenseifner"), (None, "ring")])
    tuning.write(file, again)
    assert tuning.read(file) == [*cases[1:], again]
    assert os.listdir(file.parent) == ["tuning.json"]  # nothing temporary is left


def test_a_missing_file_has_no_entries(tmp_path):
    assert tuning.read(tmp_path / "none.json") == []


def test_a_broken_file_is_written_over(tmp_path):
    file = tmp_path / "tuning.json"
    file.write_text("{")
    tuning.write(file, entry())
    assert tuning.read(file) == [entry()]


NO_TABLES = {
    "no JSON": b"{",
    "empty": b"",
    "no text": b"\xff\xfe\x00",
    "list": b"[]",
    "number": b"3",
    "null": b"null",
    "no format": b'{"entries": []}',
    "other format": b'{"format": 2, "entries": []}',
    "no entries": b'{"format": 1}',
    "entries null": b'{"format": 1, "entries": null}',
    "entries of numbers": b'{"format": 1, "entries": [3]}',
}
NO_ENTRIES = {
    "collective": {"collective": "Alltoall"},
    "ranks": {"ranks": "2"},
    "nodes": {"nodes": None},
    "no limits": {"limits": []},
    "limits null": {"limits": None},
    "limits a dict": {"limits": {"a": 1}},
    "limits of three": {"limits": [[1, "ring", 2], [None, "ring"]]},
    "not ascending": {"limits": [[9, "ring"], [8, "native"], [None, "ring"]]},
    "last not null": {"limits": [[9, "ring"]]},
    "null before the last": {"limits": [[None, "ring"], [None, "native"]]},
    "text": {"limits": [["9", "ring"], [None, "native"]]},
    "fraction": {"limits": [[9.5, "ring"], [None, "native"]]},
    "algorithm": {"limits": [[9, "quick"], [None, "ring"]]},
    "no algorithm": {"limits": [[None, "?"]]},
    "algorithm a list": {"limits": [[None, ["ring"]]]},
}


@pytest.mark.parametrize("case", [*NO_TABLES, *NO_ENTRIES])
def test_what_is_no_table_is_an_error_that_names_the_file(tmp_path, case):
    file = tmp_path / "tuning.json"
    if case in NO_TABLES:
        file.write_bytes(NO_TABLES[case])
    else:
        table(file, entry(), {**entry(), **NO_ENTRIES[case]})
    with pytest.raises(ValueError, match=r"tuning\.json: (not a|cannot read the) tuning table"):
        tuning.read(file)


@pytest.mark.parametrize("missing", ["collective", "ranks", "nodes", "limits"])
def test_every_key_is_needed(tmp_path, missing):
    short = entry()
    del short[missing]
    with pytest.raises(ValueError, match=missing):
        tuning.read(table(tmp_path / "tuning.json", short))


@pytest.mark.parametrize("case", NO_ENTRIES)
def test_nothing_wrong_is_written(tmp_path, case):
    file = tmp_path / "tuning.json"
    with pytest.raises((ValueError, TypeError, KeyError, IndexError)):
        tuning.write(file, {**entry(), **NO_ENTRIES[case]})
    assert not file.exists()


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ValueError, match="cannot read"):
        tuning.read(tmp_path)


def load(comm, nodes, file):
    """Only rank 0 sees the file: the others have another path."""
    before = os.environ.get("PSGD_TUNING")
    os.environ["PSGD_TUNING"] = str(file) if comm.rank == 0 else "/nowhere/at/all.json"
    try:
        return tuning.load(comm, nodes)
    finally:
        os.environ.pop("PSGD_TUNING")
        if before is not None:
            os.environ["PSGD_TUNING"] = before


@pytest.mark.ranks(1, 3)
def test_all_ranks_get_what_rank_0_reads_for_their_case(comm, tmp_path):
    file = tmp_path / "tuning.json"
    if comm.rank == 0:
        mine = entry(ranks=comm.size, nodes=2, limits=[(10, "recursive_doubling"), (None, "ring")])
        bcast = entry("Bcast", ranks=comm.size, nodes=2, limits=[(None, "chain")])
        table(file, entry(ranks=comm.size), entry(ranks=comm.size + 1, nodes=2), mine, bcast)
    found = load(comm, 2, file)
    assert found == {"Allreduce": [(10, "recursive_doubling"), (np.inf, "ring")], "Bcast": [(np.inf, "chain")]}
    assert load(comm, 7, file) == {}


@pytest.mark.ranks(1, 3, timeout=10)
def test_a_broken_table_is_one_error_on_all_ranks(comm, tmp_path):
    file = tmp_path / "broken.json"
    if comm.rank == 0:
        file.write_text("{")
    same_error(comm, lambda: load(comm, 1, file), UsageError, "broken.json", "remove it")
    same_error(comm, lambda: load(comm, 1, tmp_path), UsageError, "cannot read")


@pytest.mark.ranks(1, 3, timeout=10)
def test_a_named_table_that_is_not_there_is_one_error_on_all_ranks(comm, tmp_path):
    same_error(comm, lambda: load(comm, 1, tmp_path / "none.json"), UsageError, "PSGD_TUNING: expected", "none.json")


@pytest.mark.ranks(3, timeout=10)
def test_a_user_without_a_home_has_no_table(comm):
    """In containers a process may run as a user that the system does not know."""

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    real, before = Path.home, {name: os.environ.pop(name, None) for name in ("PSGD_TUNING", "XDG_CONFIG_HOME")}
    Path.home = staticmethod(homeless)
    try:
        assert tuning.load(comm, 1) == {}
    finally:
        Path.home = real
        os.environ.update({name: value for name, value in before.items() if value is not None})


def test_every_algorithm_may_stand_in_a_table(tmp_path):
    pairs = [[i, name] for i, name in enumerate(catalog.ALGORITHMS)]
    pairs[-1][0] = None
    table(tmp_path / "t.json", entry(limits=pairs))
    assert len(tuning.read(tmp_path / "t.json")) == 1
