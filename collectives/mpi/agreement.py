"""What every rank does by itself between collective steps, and may fail in: then all ranks raise the same error."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from mpi4py import MPI

from psgd.collectives.dispatch import contract
from psgd.collectives.mpi.agreement import TEXT_BYTES, packed, unpacked
from psgd.kernels.errors import AgreedUsageError, Error, UsageError

Made = TypeVar("Made")
_FINE, _USAGE, _MEMORY, _OTHER = range(4)


def together(comm: MPI.Intracomm, what: str, make: Callable[[], Made]) -> Made:
    """Calls `make`, which must not communicate, on every rank. Collective, blocks.

    Args:
        comm: the ranks.
        what: is made, for errors other than a UsageError.
        make: called once on each rank.

    Returns:
        What `make` returned.

    Raises:
        AgreedUsageError: it raised a UsageError on some rank; on all ranks, as are the other two.
        MemoryError: some rank had no memory.
        Error: it raised anything else.
    """
    kind, text, cause = _FINE, "", None
    try:
        made = make()
    except Exception as error:
        kind = _USAGE if isinstance(error, UsageError) else _MEMORY if isinstance(error, MemoryError) else _OTHER
        text, cause = str(error) if kind == _USAGE else f"{what}: {error!r}", error
    worst = np.array([kind], np.int64)
    comm.Allreduce(MPI.IN_PLACE, worst, MPI.MAX)
    if worst[0] == _FINE:
        return made
    texts = np.empty((comm.size, TEXT_BYTES), np.uint8)
    comm.Allgather(packed(text), texts)
    said = contract.tell([unpacked(each) for each in texts], range(comm.size))
    raise {_USAGE: AgreedUsageError, _MEMORY: MemoryError, _OTHER: Error}[int(worst[0])](said) from cause
