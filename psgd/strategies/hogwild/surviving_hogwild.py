"""hogwild among workers of which some die: the memory outlives its writers, and so does what they have written.

Nothing but counters has to be agreed on. Of the step in which a worker dies a part may be written; its samples are
taken again by others. All workers must be on one node: on several, a death ends the run.
"""

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives import Communicator
from psgd.collectives.mpi.node import ranks_of_node
from psgd.kernels.memory import counters
from psgd.runtime.mesh import Mesh
from psgd.runtime.ulfm.tolerance import TOLERANCE
from psgd.strategies.hogwild.counts import HogwildCounts
from psgd.strategies.hogwild.nodes import NodeCopies
from psgd.worker.serverless.counter_lines import CounterLines
from psgd.worker.serverless.reunion import Reunion


def on_one_node(mesh: Mesh) -> bool:
    """Whether all workers are; else the run survives no death from now on. Collective over the workers, blocks."""
    workers = cast(MPI.Intracomm, mesh.worker)
    if len(ranks_of_node(workers)) == mesh.workers:
        return True
    mesh.survival = None
    TOLERANCE.allow(())
    return False


class Survives:
    """What a worker of hogwild is beside itself; implements `psgd.worker.serverless.reunion.Reunites`."""

    ends: Callable[[], bool]
    _reunion: Reunion
    _lines: CounterLines
    _counts: HogwildCounts
    _members: list[int]
    _begun: list[int]
    _nodes: NodeCopies
    _lost: NDArray[np.floating]
    _show: Callable[[], None]
    _meet_if_called: Callable[[], None]
    _rejoin: Callable[[MPI.Intracomm, Communicator], None]

    def step(self, samples: int, loss: float) -> None:
        self._reunion.drawn += samples
        self._reunion.look()
        super().step(samples, loss)  # type: ignore[misc]  # the worker's

    def _end(self) -> None:
        while not self.ends():  # stopped early: what it was left is not to be done
            pass

    def _all_done(self) -> bool:
        self._show()
        self._meet_if_called()
        self._reunion.look()
        return self._lines.done(self._members)

    def facts(self) -> Sequence[int]:
        return ()

    def level(self, comm: MPI.Intracomm, members: list[int], facts: NDArray[np.int64]) -> list[int]:
        self._lines.put(counters.DONE, 0)  # there may be more to do
        self._made = Communicator(comm)
        return [now - then for now, then in zip(self._lines.samples(), self._begun, strict=True)]

    def settle(self, comm: MPI.Intracomm, members: list[int]) -> None:
        self._rejoin(comm, self._made)
        self._members = members
        if comm.rank == 0:
            self._counts.lead()
        self._nodes.leads = comm.rank == 0
        dead = (self._lines.line(worker)[:2] for worker in range(len(self._begun)) if worker not in members)
        self._lost = np.sum([*dead, (0, 0)], 0)
