"""Offsets between ranks whose clocks were set apart on purpose."""

import time

import pytest

from psgd.collectives.mpi.wait import Waiter
from psgd.metrics.trace import clock_offsets
from psgd.metrics.trace.clock_offsets import measure


def wait(request):
    Waiter(False, far=True).soon(request.Test)


@pytest.mark.ranks(1, 3, 5)
def test_clocks_that_were_set_apart_are_found_to_be(comm):
    ahead = 5.0 * comm.rank
    found = measure(comm, wait, lambda: time.perf_counter() + ahead, name=f"host {comm.rank}")
    assert abs(found.seconds - ahead) <= found.error
    assert found.error < (0.05 if comm.rank else 1e-12)
    assert abs(found.at - (time.perf_counter() + ahead)) < 10


@pytest.mark.ranks(4)
def test_ranks_of_one_host_have_one_clock_and_no_offset(comm):
    assert measure(comm, wait)[1:] == (0.0, 0.0)
    two = measure(comm, wait, name=f"host {comm.rank // 2}")
    assert abs(two.seconds) <= two.error
    assert (two.error == 0) == (comm.rank < 2)


def test_this_process_knows_its_clocks_name(monkeypatch):
    assert clock_offsets.clock_name() == clock_offsets.clock_name() != ""
    monkeypatch.setattr(clock_offsets.Path, "read_text", lambda path: (_ for _ in ()).throw(FileNotFoundError()))
    assert clock_offsets.clock_name().startswith("unknown ")
