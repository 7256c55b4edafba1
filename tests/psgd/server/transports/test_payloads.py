import pytest

from psgd.collectives.mpi.wait import Waiter
from psgd.server.transports.payloads import Payloads


@pytest.mark.ranks(2)
def test_payloads_of_any_length_arrive_in_their_order_both_ways(comm):
    lengths = [0, 1, 24, 1000, 3]
    waiter, payloads = Waiter(True), Payloads(comm, 1 - comm.rank, incoming=1000, outgoing=1000)
    assert payloads.sent()
    for number, length in enumerate(lengths):
        payloads.expect()
        waiter.until(payloads.sent)
        payloads.out[:length] = 10 * comm.rank + number + 1
        payloads.send(length)
        waiter.until(payloads.arrived)
        assert payloads.arrived()
        assert payloads.payload.tobytes() == bytes([10 * (1 - comm.rank) + number + 1]) * length
    waiter.until(payloads.sent)
    payloads.close()
