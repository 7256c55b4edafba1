"""Messages over MPI: in order, of any number of samples, and no room while all copies are on their way."""

import numpy as np
import pytest

from psgd.collectives.mpi.tags import Tag
from psgd.collectives.mpi.wait import Waiter
from psgd.parallel.stages.messages import MessageInlet, MessageOutlet

DEPTH, SHAPE = 3, (200, 50)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("batch", [1, 16])
def test_messages_come_in_order(comm, batch):
    private, waiter = comm.Dup(), Waiter(True)
    if comm.rank == 0:
        outlet = MessageOutlet(private, 1, Tag.EDGE, DEPTH, batch, SHAPE, np.float32)
        for k in range(20):
            message = np.full((1 + k % batch, *SHAPE), k, np.float32)
            waiter.until(lambda message=message, k=k: outlet.send(message, 3 * k))
            message[:] = -1  # it has been copied
        private.Barrier()
        outlet.progress()
        outlet.close()
    else:
        inlet = MessageInlet(private, 0, Tag.EDGE, DEPTH, batch, SHAPE, np.float32)
        kept = []
        for k in range(20):
            waiter.until(inlet.arrived)
            slot, array, total = inlet.take(1 + k % batch)
            assert array.shape == (1 + k % batch, *SHAPE) and total == 3 * k
            assert (array == k).all()
            kept.append((slot, array, k))
            if len(kept) == DEPTH:
                assert not inlet.arrived()
                for slot, array, number in kept[::-1]:  # the last first
                    assert (array == number).all()
                    inlet.release(slot)
                kept.clear()
        private.Barrier()
        inlet.close()
    private.Free()
