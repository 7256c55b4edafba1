"""Several ranks of a peer group on one GPU and in one process: each has a stream and memory of its own.

All blocks of all ranks must run at once, since they wait for each other: at most 4 ranks, whose streams the hardware
keeps apart, and arrays below some MiB.
"""

from types import SimpleNamespace

import numpy as np

from harness.device import cupy

_made = []


def group(ranks):
    """A `PeerGroup` for each rank, which have each other's memory without CUDA IPC; and a stream for each."""
    xp = cupy()
    while _made:  # a kernel that a failed test has left would wait for ever, and everything else for it
        _made.pop().order_end()
    from psgd.collectives.peers import choose
    from psgd.collectives.peers.group import PeerGroup

    device = xp.cuda.runtime.getDevice()
    groups = [PeerGroup(SimpleNamespace(rank=rank, size=ranks), device) for rank in range(ranks)]
    for into, nbytes in (("base", choose.region_bytes(ranks)), ("wide", choose.wide_bytes(ranks))):
        memory = [xp.zeros(nbytes, np.uint8) for _ in groups]
        for each in groups:
            each.regions = [*getattr(each, "regions", []), memory]
            getattr(each.head, into)[:] = [part.data.ptr for part in memory]
    for each in groups:
        each.wide = True
        _made.append(each)
    xp.cuda.Device().synchronize()  # arrays are made on another stream than calls run on
    return groups, [xp.cuda.Stream(non_blocking=True) for _ in groups]


def values(ranks, n, kind, seed=0, most=90):
    """Small whole numbers: sums of them are exact in every type."""
    return [np.random.default_rng([seed, rank]).integers(0, most, n).astype(kind) for rank in range(ranks)]
