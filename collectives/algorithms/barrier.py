"""Barrier by dissemination, in log2 P rounds: in round k a rank signals rank + 2^k, and waits for rank - 2^k."""

import numpy as np

from psgd.collectives.algorithms.channel import Channel
from psgd.collectives.mpi.wait import Steps

_NOTHING = np.empty(0, np.uint8)


def barrier(channel: Channel) -> Steps:
    """Ends once all ranks have begun it."""
    distance = 1
    while distance < channel.size:
        received = channel.receive((channel.rank - distance) % channel.size, _NOTHING)
        signalled = channel.send((channel.rank + distance) % channel.size, _NOTHING)
        yield received
        yield signalled
        distance *= 2
