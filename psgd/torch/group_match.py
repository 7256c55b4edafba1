"""Which of our communicators stands for which of PyTorch's process groups: the same ranks in the same order."""

import weakref
import zlib
from typing import Any

import numpy as np
from torch import distributed as dist

from psgd.collectives import Communicator
from psgd.kernels.errors import AgreedUsageError, UsageError

_MATCHED: "weakref.WeakKeyDictionary[Communicator, weakref.ref[Any]]" = weakref.WeakKeyDictionary()
"""By communicator, the process group that it was compared with last."""


def matched(state: Any) -> Communicator:
    """The communicator of a hook's state, once it was compared with the process group. The first call is collective.

    Args:
        state: as given to `register_comm_hook`: a communicator for the default process group, or a pair of a
            communicator and a process group.

    Raises:
        UsageError: there is no communicator.
        AgreedUsageError: some rank's numbers differ in the two; on all ranks of the communicator.
    """
    comm, group = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if not isinstance(comm, Communicator):
        raise UsageError(
            f"psgd.torch: expected a psgd.collectives.Communicator as a hook's state, got {type(comm).__name__}: "
            "ddp.register_comm_hook(psgd.collectives.Communicator(MPI.COMM_WORLD), hook)"
        )
    group = group or dist.group.WORLD
    known = _MATCHED.get(comm)
    if known is None or known() is not group:
        _compare(comm, group)
        _MATCHED[comm] = weakref.ref(group)
    return comm


def _compare(comm: Communicator, group: Any) -> None:
    """Refuses a process group of other ranks, or in another order. Collective, blocks."""
    members = repr(dist.get_process_group_ranks(group)).encode()
    mine = np.array([dist.get_rank(group), dist.get_world_size(group), zlib.crc32(members)], np.int64)
    every = np.empty((comm.size, mine.size), np.int64)
    comm.Allgather(mine, every)
    ranks, sizes = every[:, 0].tolist(), sorted(set(every[:, 1].tolist()))
    if ranks != list(range(comm.size)) or sizes != [comm.size] or len(set(every[:, 2].tolist())) > 1:
        raise AgreedUsageError(
            f"psgd.torch: expected the ranks 0 to {comm.size - 1} of the communicator to be those of one process group "
            f"of size {comm.size}, got ranks {ranks} of size {', '.join(map(str, sizes))}: "
            "init_process_group(..., rank=comm.rank, world_size=comm.size)"
        )
