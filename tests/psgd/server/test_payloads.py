import numpy as np
import pytest

from psgd.collectives.mpi.tags import Tag
from psgd.collectives.mpi.wait import Waiter
from psgd.server.payloads import Arrival


@pytest.mark.ranks(2)
def test_payloads_of_any_length_come_in_their_order(comm):
    lengths = [0, 1, 24, 1000, 3]
    if comm.rank == 1:
        for number, length in enumerate(lengths):
            comm.Send(np.full(length, number + 1, np.uint8), 0, Tag.PAYLOAD)
        return
    arrival = Arrival(comm, 1, 1000)
    for number, length in enumerate(lengths):
        arrival.request.Start()
        Waiter(True).until(arrival.came)
        assert arrival.payload.tobytes() == bytes([number + 1]) * length
    arrival.request.Free()
