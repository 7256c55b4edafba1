"""What workers that share parameters tell each other: counters in memory, a cache line for each worker.

A line is written by its owner alone and read by all, so no word needs a lock or an atomic addition, and no two workers
write to one cache line. Words are int64; LOSS is a float64. Addresses are integers, multiples of 64.
"""

import numba
import numpy as np

from psgd.kernels.jit import kernel
from psgd.kernels.memory import atomic

LINE_WORDS = 8
LINE_BYTES = 8 * LINE_WORDS
STEPS, SAMPLES, LOSS, DONE, STOP, FAR_STEPS, FAR_SAMPLES, WISH = range(8)


@kernel
def count(lines: int, worker: int, samples: int, loss: float) -> None:
    """Adds a step, its samples and their loss to a worker's line: by its owner, once the step's update is written."""
    line = lines + LINE_BYTES * worker
    losses = numba.carray(atomic.pointer(line + 8 * LOSS, np.float64), 1)
    losses[0] += samples * loss
    atomic.store(line + 8 * SAMPLES, atomic.load(line + 8 * SAMPLES) + samples)
    atomic.store(line + 8 * STEPS, atomic.load(line + 8 * STEPS) + 1)


@kernel
def put(lines: int, worker: int, word: int, value: int) -> None:
    """Writes a word of a worker's line: by its owner."""
    atomic.store(lines + LINE_BYTES * worker + 8 * word, value)


@kernel
def totals(lines: int, workers: int) -> tuple[int, int, int, int]:
    """Adds up the lines.

    Returns:
        Steps and samples of these workers and, as the first line tells, of others far away; how many of these workers
        are done; the first line's STOP.
    """
    steps = atomic.load(lines + 8 * FAR_STEPS)
    samples = atomic.load(lines + 8 * FAR_SAMPLES)
    stop = atomic.load(lines + 8 * STOP)
    done = 0
    for worker in range(workers):
        line = lines + LINE_BYTES * worker
        done += atomic.load(line + 8 * DONE)  # before the others, so that who is done is counted whole
        steps += atomic.load(line + 8 * STEPS)
        samples += atomic.load(line + 8 * SAMPLES)
    return steps, samples, done, stop


@kernel
def add_one(values: np.ndarray, grad: np.ndarray) -> int:
    """Adds 1 where the gradient is not 0: reads, adds and writes back without a lock, just as an update rule does.

    Returns:
        How many elements that are.
    """
    added = 0
    for i in range(values.size):
        if grad[i] != 0:
            values[i] += 1
            added += 1
    return added
