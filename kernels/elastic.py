"""The elastic pull between a worker's parameters and the centre, in one pass over both.

All take the displacement `rate * (params - centre)` from the old values of both sides, and leave `params` alone: the
step that the worker takes with its gradient starts there too. Arithmetic is in the dtype of `params`.
"""

import numpy as np

from psgd.kernels.by_device import by_device
from psgd.kernels.jit import kernel
from psgd.kernels.memory import atomic

LOCK, EXCHANGES = 0, 1
"""Words (int64) in shared memory: 0, or 1 plus the worker that has the lock; exchanges so far."""


@by_device
@kernel
def stretch(displacement: np.ndarray, params: np.ndarray, centre: np.ndarray, rate: float) -> None:
    """`displacement = rate * (params - centre)`."""
    rate_ = params.dtype.type(rate)
    for i in range(params.size):
        displacement[i] = rate_ * (params[i] - centre[i])


@by_device
@kernel
def forward(
    displacement: np.ndarray, params: np.ndarray, incoming: np.ndarray, outgoing: np.ndarray, rate: float
) -> None:
    """The same against `incoming`, and `outgoing = incoming + displacement`."""
    rate_ = params.dtype.type(rate)
    for i in range(params.size):
        old = incoming[i]
        pull = rate_ * (params[i] - old)
        displacement[i] = pull
        outgoing[i] = old + pull


@kernel
def exchange(displacement: np.ndarray, params: np.ndarray, centre: np.ndarray, rate: float, words: int) -> int:
    """The same, and `centre += displacement` in place, without a lock; returns the exchanges that had ended before.

    Where two do so at once, each element is read and written whole, and one of two additions to it may be lost.
    """
    rate_ = params.dtype.type(rate)
    for i in range(params.size):
        old = centre[i]
        pull = rate_ * (params[i] - old)
        displacement[i] = pull
        centre[i] = old + pull
    before: int = atomic.fetch_and_add(words + 8 * EXCHANGES, 1)
    return before


@kernel
def exchange_locked(
    displacement: np.ndarray, params: np.ndarray, centre: np.ndarray, rate: float, words: int, worker: int, spins: int
) -> int:
    """The same while nobody else does; returns -1, and changes nothing, where the lock is not free for `spins` looks.

    Args:
        displacement: of this worker.
        params: of this worker.
        centre: in shared memory.
        rate: what the difference is multiplied by.
        words: address of LOCK and EXCHANGES, a multiple of 8.
        worker: this one's number, 0 or more.
        spins: 1 or more.
    """
    while not atomic.compare_and_swap(words + 8 * LOCK, 0, worker + 1):
        spins -= 1
        if spins <= 0:
            return -1
        atomic.pause()
    before = exchange(displacement, params, centre, rate, words)
    atomic.store(words + 8 * LOCK, 0)
    return before
