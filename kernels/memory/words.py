"""Words in shared memory for Python code, which must not be reordered with what they tell of."""

from psgd.kernels.jit import kernel
from psgd.kernels.memory import atomic


@kernel
def load(address: int) -> int:
    """Reads the int64 at an address, a multiple of 8: what was written before it is seen after it."""
    return int(atomic.load(address))


@kernel
def store(address: int, value: int) -> None:
    """Writes an int64 to an address, a multiple of 8: what was written before it is seen with it."""
    atomic.store(address, value)
