"""Where gradients lie: in memory that the servers of the same node read directly, so that a push there is a header.

Whether a worker and a server share memory is found out by trying, once, together; all ranks learn the answer.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from psgd.collectives.mpi import shared_memory
from psgd.runtime.agreement import gather
from psgd.runtime.mesh import Mesh

Vector = NDArray[np.floating]


class Gradients(NamedTuple):
    """This rank's view of all gradients.

    Attributes:
        own: a worker's gradient, zero at first; None on a server.
        workers: on a server, each worker's whole gradient where it can be read from here, else None.
        reached: on a worker, whether each server reads `own` directly.
    """

    own: Vector | None
    workers: list[Vector | None]
    reached: list[bool]


def allocate(mesh: Mesh, size: int, dtype: np.dtype[Any]) -> Gradients:
    """Makes each worker's gradient and lets the servers attach. Collective over the mesh; blocking."""
    own: Vector | None = None
    memory: shared_memory.SharedArray | None = None
    if mesh.role == "worker":
        memory = _try_shared(size, dtype)
        own = np.zeros(size, dtype) if memory is None else memory.array  # type: ignore[assignment]
    addresses = gather(mesh.world, memory.address() if memory is not None else {})[mesh.servers :]
    views: list[Vector | None] = []
    if mesh.role == "server" and shared_memory.enabled():
        views = [shared_memory.attach(address, size, dtype) if address else None for address in addresses]  # type: ignore[misc]
    views = views or [None] * mesh.workers
    answers = gather(mesh.world, {"reached": [view is not None for view in views]})[: mesh.servers]
    if memory is not None:
        memory.seal()
    if own is None:
        return Gradients(None, views, [])
    return Gradients(own, [], [bool(answer["reached"][mesh.index]) for answer in answers])


def apart(mesh: Mesh, size: int, dtype: np.dtype[Any]) -> Gradients:
    """Each worker's gradient in memory of its own, read by nobody else. Not collective."""
    own: Vector | None = np.zeros(size, dtype) if mesh.role == "worker" else None
    return Gradients(own, [None] * mesh.workers, [False] * mesh.servers)


def _try_shared(size: int, dtype: np.dtype[Any]) -> shared_memory.SharedArray | None:
    if not shared_memory.enabled():
        return None
    try:
        return shared_memory.SharedArray(size, dtype)
    except OSError:
        return None
