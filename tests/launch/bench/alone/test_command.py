"""`psgd bench peers`: each peer alone and in its benchmark."""

import json

import pytest

from psgd.launch.bench.alone import command


@pytest.mark.job
def test_each_peer_alone_and_in_its_benchmark(psgd_command):
    result = psgd_command("bench", "peers", "--turns", "1", "--sizes", "4KiB", "--json", timeout=115)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert {row["peer"] for row in rows} in ({"MPI", "raw MPI"}, {"MPI", "raw MPI", "Gloo", "torch RPC"}), result.stderr
    for row in rows:
        assert row["nbytes"] == 4096 and min(row["seconds"], row["alone_seconds"]) > 0
    slow = max(row["ratio"] for row in rows) > command.LIMIT
    assert result.returncode == int(slow)
    assert slow == ("times as long as alone" in result.stderr)


@pytest.mark.parametrize(("within", "code"), [(1.09, 0), (1.11, 1)])
def test_more_than_a_tenth_is_an_error(monkeypatch, capsys, within, code):
    monkeypatch.setattr(command, "_alone", lambda sizes, ranks: {("Gloo", 4096): 1.0, ("torch RPC", 4096): 1.0})
    monkeypatch.setattr(command, "_within", lambda sizes, ranks: {("Gloo", 4096): within})
    given = {"sizes": "4KiB", "ranks": 2, "turns": 2, "form": "markdown"}
    assert command.peers.callback(**given) == code
    out, err = capsys.readouterr()
    assert out.splitlines()[2] == f"| Gloo | 4 KiB | 1 s | {within} s | {within} |"
    assert ("Gloo" not in err) and (f"{within} times" in err) == bool(code)


@pytest.mark.one_mpi
def test_refused_as_a_rank_and_twice_the_same_size(psgd_command):
    result = psgd_command("bench", "peers", "--sizes", "4KiB,4096", timeout=30)
    assert result.returncode == 2 and "each size once" in result.stderr
