"""Push + pull with servers that hold each shard twice, and how long a worker waits when one of them is killed."""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import psgd
from psgd.connection import Connection
from psgd.runtime.mesh import Mesh
from psgd.runtime.ulfm.deaths import MpiDeaths
from psgd.runtime.ulfm.tolerance import TOLERANCE

KILLED_AFTER = 20
"""Steps before a server dies."""


class NoSamples:
    """Implements `psgd.server.surviving.hand_over.HandOver` where there are no samples to hand over."""

    def __init__(self, mesh: Mesh) -> None:
        self.failures = MpiDeaths(mesh.world)
        self.ends: Callable[[], bool] = bool

    def started(self) -> None:
        pass

    def lost_server(self, server: int) -> None:
        pass

    def not_survived(self) -> None:
        pass

    def lost(
        self, worker: int, applied: Sequence[int], waiting: Mapping[int, int], takers: Sequence[int]
    ) -> tuple[int, dict[int, NDArray[np.int64]]]:
        return 0, {}

    def lead(self, worker: int) -> None:
        pass

    def pushed(self, worker: int, drawn: int) -> None:
        pass

    def receive(self, words: NDArray[np.int64]) -> None:
        pass

    def waiting(self, act: Callable[..., Any], **when: Callable[[], object]) -> Callable[..., Any]:
        return act


def connect(comm: MPI.Intracomm, params: NDArray[np.float32], servers: int, lr: float, replicas: int) -> Connection:
    """Connects as `psgd bench pushpull` does, with or without replicas. Collective."""
    connection: Connection = psgd.connect(comm, params, strategy="async", servers=servers, placement="dedicated", lr=lr)
    if replicas:
        connection.mesh.survival, connection.mesh.replicas = NoSamples(connection.mesh), replicas
    return connection


def pause(comm: MPI.Intracomm, params: NDArray[np.float32], servers: int, lr: float, steps: int) -> float:
    """Kills the last server, and counts what was answered.

    Returns:
        On the last rank, the longest step that any worker made after that, in seconds; else 0. Nothing collective is
        possible on `comm` any more.

    Raises:
        Error: a push that was answered was lost, or counted twice.
    """
    TOLERANCE.allow([servers - 1])
    start, longest, done = params[0].item(), 0.0, 0
    connection = connect(comm, params, servers, lr, 1)
    if comm.rank == servers - 1:
        told = connection.metrics.progress

        def progress(samples: int, version: int, rate: float) -> None:
            told(samples, version, rate)
            if version == KILLED_AFTER:
                os.kill(os.getpid(), signal.SIGKILL)

        connection.metrics.progress = progress  # type: ignore[method-assign, assignment]
    with connection as ps:
        ps.grads[:] = 1
        for done in range(1, steps + 1):
            began = time.perf_counter()
            ps.step()
            longest = max(longest, time.perf_counter() - began) if done > KILLED_AFTER // 2 else 0.0
    living: MPI.Intracomm = MpiDeaths(comm).shrink()
    TOLERANCE.survivors = living
    found = np.array([longest, float(done)])
    most = np.empty_like(found)
    living.Allreduce(found[:1], most[:1], MPI.MAX)
    living.Allreduce(found[1:], most[1:], MPI.SUM)
    if not np.allclose(params, start - lr * most[1], rtol=1e-4):
        raise psgd.Error(f"pushpull: {most[1]:g} pushes were answered, but the parameters have others")
    return float(most[0])
