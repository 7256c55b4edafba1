"""For tests of strategies without servers: gradients, update rules in NumPy, and two nodes on one machine."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike, NDArray

from harness.oracle import two_nodes
from psgd.optim import rules
from psgd.worker import shared_parameters

SAMPLES = [3, 5, 2, 7, 4]


def curved(w: NDArray[Any], worker: int, clock: int) -> NDArray[Any]:
    """A gradient that depends on parameters, worker, clock and element."""
    ramp = np.arange(1, w.size + 1, dtype=w.dtype) / w.size
    gradient: NDArray[Any] = (w * ramp + np.sin(ramp * (worker + 1) + clock)).astype(w.dtype)
    return gradient


def start_of(comm: MPI.Intracomm, n: int, dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Only worker 0's values may matter."""
    return np.cos(np.arange(n)).astype(dtype) if comm.rank == 0 else np.full(n, np.nan, dtype)


class Sequential:
    """The update rules in NumPy: a state and a step number for each worker, parameters from outside."""

    def __init__(self, name: str, n: int, dtype: DTypeLike, decay: float = 0.0, clip: float = 0.0) -> None:
        self.name, self.kind, self.decay, self.clip = name, np.dtype(dtype).type, decay, clip
        self.first, self.second, self.step = np.zeros(n, dtype), np.zeros(n, dtype), 0

    def take(self, w: NDArray[Any], grad: NDArray[Any], lr: float) -> None:
        kind, scale = self.kind, 1.0
        self.step += 1
        if self.clip:
            total = 0.0
            for x in grad.astype(np.float64).tolist():
                total += x * x
            scale = min(1.0, self.clip / total**0.5)
        g = kind(scale) * grad + kind(self.decay) * w
        if self.name == "sgd":
            w -= kind(lr) * g
        elif self.name == "adam":
            state = (self.first, self.second)  # its arithmetic is tests/psgd/optim/test_rules.py's
            rules.adam(weight_decay=self.decay).update(w, grad, state, lr, scale, self.step)
        else:
            self.first[:] = kind(0.9) * self.first + g
            w -= kind(lr) * (g + kind(0.9) * self.first if self.name == "nesterov" else self.first)


@contextlib.contextmanager
def nodes_of_two() -> Iterator[None]:
    """Even ranks are one node, odd ranks another."""
    real = shared_parameters.ranks_of_node
    shared_parameters.ranks_of_node = lambda comm: [rank for rank in range(comm.size) if rank % 2 == comm.rank % 2]
    try:
        with two_nodes():
            yield
    finally:
        shared_parameters.ranks_of_node = real
