"""Barrier by dissemination: in round k a rank tells the one 2^k ahead and hears the one 2^k behind; log2 P rounds."""

import numpy as np

from psgd.collectives.algorithms.channel import Channel
from psgd.collectives.mpi.wait import Steps

_NOTHING = np.empty(0, np.uint8)


def barrier(channel: Channel) -> Steps:
    """Ends once all ranks have begun it."""
    distance = 1
    while distance < channel.size:
        heard = channel.receive((channel.rank - distance) % channel.size, _NOTHING)
        told = channel.send((channel.rank + distance) % channel.size, _NOTHING)
        yield heard
        yield told
        distance *= 2
