"""Averaging between nodes of which each trains a copy in memory of its own, by one rank a node: the leader."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.checkpoint import restore
from psgd.collectives.mpi import byte_counts
from psgd.kernels import accumulate, sparse_update
from psgd.metrics.totals import Sums
from psgd.runtime.jsonable import JSON, fact, numbers

if TYPE_CHECKING:
    from psgd.collectives import Communicator

_SAMPLES, _DONE, _STOP = 1, 3, 4


class NodeAveraging:
    """A leader's part. Creating is collective over the leaders.

    In a round every node k adds A - S_k to its copy, where S_k is what the leader found there and A the mean of all
    S_k, weighted by the samples of each node since the last round. Adding keeps what the node's other workers write
    meanwhile, but for single elements that both write at the same moment. The last round, when nobody writes any more,
    leaves A itself, the same bits on all nodes. (McMahan et al. 2017, with nodes for clients.)

    Args:
        comm: the leaders; freed by `free`.
        params: the node's common parameters, 1-D.

    Attributes:
        far: sums of the other nodes, as of the last round.
        stop: the first leader asked to stop, as of the last round.
        request: for a checkpoint: the largest in the last round.
        bytes_sent: as `psgd.collectives.mpi.byte_counts` counts; as many were received.
    """

    def __init__(self, comm: "Communicator", params: NDArray[np.floating]) -> None:
        self.far = Sums(0, 0, 0.0)
        self.stop, self.request = False, 0
        self.bytes_sent = 0
        self._comm = comm
        self._params = params
        self._found = np.empty_like(params)
        self._average = self._comm.empty(params.size, params.dtype)
        self._mine = np.zeros(5)
        self._all = np.zeros((comm.size, 5))
        self._flat = self._all.reshape(-1)
        self._before = np.zeros(comm.size)
        none = params[:0]
        accumulate.weigh(none, none, 1.0)
        sparse_update.sgd(none, none, -1.0, 1.0)

    def round(self, sums: Sums, done: bool, stop: bool, request: int = 0) -> bool:
        """Averages. Collective over the leaders, blocks.

        Args:
            sums: of this node; all that is counted there is in the parameters already.
            done: nobody on this node writes any more.
            stop: on the first leader, to be passed on.
            request: for a checkpoint: the largest of this node's workers.

        Returns:
            Whether all nodes are done: this was the last round.
        """
        self._mine[:] = *sums, done, stop + 2 * request
        self._comm.Allgather(self._mine, self._flat)
        all_done = bool(self._all[:, _DONE].all())
        self.stop, self.request = bool(int(self._all[0, _STOP]) % 2), int(self._all[:, _STOP].max()) // 2
        steps, samples, loss = np.delete(self._all, self._comm.rank, 0).sum(0)[:3].tolist()
        self.far = Sums(int(steps), int(samples), loss)
        np.copyto(self._found, self._params)
        accumulate.weigh(self._average, self._found, self._weight())
        self._comm.Allreduce(MPI.IN_PLACE, self._average)
        self.bytes_sent += byte_counts.allreduce(self._comm.size, self._average.nbytes)
        self.bytes_sent += byte_counts.allgather(self._comm.size, self._mine.nbytes)
        if all_done:
            np.copyto(self._params, self._average)
        else:
            np.subtract(self._average, self._found, out=self._average)
            sparse_update.sgd(self._params, self._average, -1.0, 1.0)  # adds it, where it is not 0
        return all_done

    def _weight(self) -> float:
        new = self._all[:, _SAMPLES] - self._before
        self._before[:] = self._all[:, _SAMPLES]
        total = float(new.sum())
        return float(new[self._comm.rank]) / total if total else 1.0 / len(new)

    def known(self) -> list[list[float]]:
        """What the next round depends on: sums of the other nodes, and each node's samples as of the last round."""
        return [list(self.far), self._before.tolist()]

    def resume(self, facts: Mapping[str, JSON]) -> None:
        """Continues from that, a checkpoint's `nodes`."""
        far, before = fact(facts, "nodes")
        steps, samples, loss = numbers({"nodes": far}, "nodes", 3)
        self._before[:] = numbers({"nodes": before}, "nodes", self._before.size)
        restore.check_counts("nodes", np.array([steps, samples, *self._before]))
        self.far = Sums(int(steps), int(samples), loss)

    def free(self) -> None:
        """Frees what it made. Collective."""
        self._comm.free()
