"""Python's garbage collector stands still while a GPU's work is recorded."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Inside, no garbage is collected, in no thread.

    What is collected may free memory of a GPU or close a mapping of another's. CUDA allows neither to a thread that
    records a graph: the recording fails, at its next kernel, which has done nothing wrong.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
