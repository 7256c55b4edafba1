"""Whether events are over, and the errors of what they stand behind: CuPy's `Event.done` takes those for "not yet"."""

from typing import Any

import cupy

_NOT_READY = 600  # cudaErrorNotReady


def over(event: Any) -> bool:
    """Whether all that an event was recorded behind is done. Does not block.

    Raises:
        CUDARuntimeError: a kernel or a copy has failed, so that nothing on this GPU will ever be done.
    """
    status = cupy.cuda.runtime.eventQuery(event.ptr)
    if status not in (0, _NOT_READY):
        raise cupy.cuda.runtime.CUDARuntimeError(status)
    return bool(status == 0)
