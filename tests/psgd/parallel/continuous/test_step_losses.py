"""Losses of steps on real ranks: in order, however far the source is ahead."""

import time

import pytest

from psgd.parallel.continuous.step_losses import StepLosses


def until(test):
    limit = time.monotonic() + 20
    while not test():
        assert time.monotonic() < limit


@pytest.mark.ranks(3)
def test_each_loss_reaches_all_in_order(comm):
    private = comm.Dup()
    losses = StepLosses(private, 2, 3)
    for step in range(20):
        if comm.rank == 2:
            until(losses.free)
            losses.tell(step / 3)
        else:
            if step % 5 == comm.rank:
                time.sleep(0.01)  # the source is as far ahead as it can be
            until(losses.known)
        assert losses.value == step / 3
    comm.Barrier()
    assert comm.rank == 2 or not losses.known()
    losses.close()
    losses.close()
    private.Free()
