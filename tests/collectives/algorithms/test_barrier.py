"""The dissemination barrier: nobody leaves before all have come, in as few rounds as possible."""

import time

import pytest
from harness.channel import Channel, drive

from psgd.collectives.algorithms.barrier import barrier


@pytest.mark.ranks(1, 2, 3, 5)
def test_nobody_leaves_before_the_last_has_come(comm):
    for late in range(comm.size):
        comm.Barrier()
        channel = Channel(comm)
        if comm.rank == late:
            time.sleep(0.05)
        came = time.monotonic()
        drive(channel, barrier(channel))
        left = time.monotonic()
        assert left >= max(comm.allgather(came))
        assert channel.sent == (comm.size - 1).bit_length() and channel.nbytes == 0
