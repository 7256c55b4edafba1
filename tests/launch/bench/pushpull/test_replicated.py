"""Push + pull with each shard on two servers, one of which is killed with SIGKILL: no answered push is lost."""

import json

import pytest
from harness import mpi


@pytest.mark.job
@pytest.mark.skipif(not mpi.is_open_mpi(), reason="this MPI has no ULFM")
def test_it_is_timed_and_a_killed_server_costs_a_pause_and_no_push(psgd_command):
    words = ["--servers", "2", "--workers", "2", "--replicas", "1", "--sizes", "256KiB", "--repeats", "5", "--json"]
    done = psgd_command("bench", "pushpull", *words, timeout=120, check=True)  # it counts what was answered itself
    row, last = map(json.loads, done.stdout.splitlines())
    assert row["replicated_seconds"] > 0 and row["verified"]
    assert last["nbytes"] == 256 << 10 and 0 < last["pause_seconds"] < 20


def test_one_server_cannot(psgd_command):
    done = psgd_command("bench", "pushpull", "--replicas", "1", timeout=30)
    assert done.returncode == 2 and "add --servers 2" in done.stderr
