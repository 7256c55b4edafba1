"""What `psgd.connect` needs of a model whose parameters and gradients are views of flat vectors."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.nn.layout import Layout
from psgd.runtime.mesh import Mesh
from psgd.worker.interface import Vector

Wait = Callable[[MPI.Request], None]


@runtime_checkable
class BoundModel(Protocol):
    """A model of another library (`psgd.torch.Wrapped`), handed to `psgd.connect` in place of a vector.

    A connection calls `prepare`, on a worker `bind` and `begin`, and around each step `gather` and `scatter`; at the
    end, on every rank, `unbind` and `end`. Nothing but `begin` and `end` communicates.

    Attributes:
        layout: names and shapes in the vector.
        signature: what else all ranks must have alike.
        spoiled: this step's gradient is to have no numbers, so that the step is left out on all ranks.
    """

    layout: Layout
    signature: str
    spoiled: bool

    def prepare(self) -> Vector:
        """Returns the vector with the parameters as they are now.

        Raises:
            UsageError: the model can no longer be trained.
        """

    def serve(self) -> Vector:
        """On a server, instead of a vector on a GPU: one on the host, with the same values, until `unbind`."""
        return self.prepare()

    def bind(self, params: Vector, grads: Vector) -> None:
        """From now on, the model computes with these vectors."""

    def announce(self, ready: Callable[[range], None]) -> None:
        """The next backward pass calls `ready` with each range of the gradient that is final, from end to start."""

    def gather(self) -> None:
        """The gradient is complete: makes the bound vector hold it, but for what was announced.

        Raises:
            UsageError: the model was changed, or its gradient cannot be taken.
        """

    def scatter(self) -> None:
        """The bound parameters have changed."""

    def unbind(self) -> None:
        """From now on, the model computes with the vector of `prepare` again, and memory of its own."""

    def begin(self, comm: MPI.Comm, wait: Wait, kept: Mapping[str, Any]) -> None:
        """Starts from the first worker's buffers and frozen parameters, or the buffers of a checkpoint. Collective.

        Args:
            comm: the workers.
            wait: blocks until a request is done.
            kept: what this worker has saved; by name a list of what all workers have, where it has nothing.
        """

    def kept(self) -> dict[str, NDArray[np.uint8]]:
        """What a worker saves beside its parameters."""

    def put_back(self, kept: Mapping[str, Any]) -> None:
        """All that `kept` has given is again as it was then. Does not communicate."""

    def end(self, comm: MPI.Comm, wait: Wait, first: int, steps: int | None) -> None:
        """Settles the buffers of all ranks. Collective.

        Args:
            comm: all ranks.
            wait: blocks until a request is done.
            first: the first worker's rank.
            steps: of this worker; None on a server.
        """


def settle(model: BoundModel, mesh: Mesh, wait: Wait, steps: int | None) -> None:
    """The block is over: the model is unbound, and all ranks that live settle their buffers.

    Collective, blocks.

    Args:
        model: of this rank.
        mesh: of the run.
        wait: blocks until a request is done.
        steps: of this worker; None on a server.
    """
    model.unbind()
    if mesh.survival is None:
        model.end(mesh.world, wait, mesh.servers, steps)
        return
    kept = model.kept()

    def end(living: MPI.Intracomm, first: int) -> None:
        model.put_back(kept)  # one may have died in it, when some had settled theirs
        model.end(living, wait, first, steps)

    mesh.survival.among_living(end)
