"""EASGD's original order: the centre goes round the workers, 0, 1, ..., and whoever has it exchanges with it.

One exchange after the other, P messages of the whole vector for each round: what the synchronous order replaces by an
all-reduce. A worker that is done hands the centre on unchanged until all are; then the centre goes round once more.
What worker 0 has to know travels with it.
"""

import time
import weakref

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.collectives.requests import close
from psgd.collectives.tags import Tag
from psgd.collectives.waiting import Waiter
from psgd.kernels import elastic
from psgd.peers import Peers, rounds
from psgd.peers.easgd_tally import Tally
from psgd.peers.watch import Watch

Vector = NDArray[np.floating]

_VERSION, _TOTAL, _STOP, _LAST, _HEAD = range(5)  # exchanges; samples; worker 0's wish; who found that all are done
_PUSHES, _SAMPLES, _LOSS, _STALENESS, _DONE, _WAITED, _COMPUTED, _WORDS = range(8)  # of each worker's last turn


class RoundRobin:
    """A worker's part. Implements `psgd.peers.easgd.Order`.

    The next centre is received into a buffer of its own, from the moment that the last one was used, so that the
    worker before this one need not wait long; `centre` is what this worker sent on last.
    """

    def __init__(self, peers: Peers) -> None:
        self.samples = self.version = 0
        self.stop = False
        self.bytes_sent = self.bytes_received = 0
        self._params, self._metrics = peers.params, peers.metrics
        workers: MPI.Intracomm = peers.mesh.worker  # type: ignore[assignment]
        self._watch = Watch(workers, peers.alarm)
        self._waiter = Waiter.for_node(workers, self._watch.check)
        self._comm = comm = workers.Dup()
        self._rank, self._size = comm.rank, comm.size
        self._left, self._right = (self._rank - 1) % self._size, (self._rank + 1) % self._size
        self.displacement: Vector = np.empty_like(self._params)
        self.centre: Vector = np.empty_like(self._params)
        self._incoming: Vector = np.empty_like(self._params)
        self._head_in, self._head = (np.zeros(_HEAD + _WORDS * self._size) for _ in range(2))
        self._told = self._head[_HEAD:].reshape(self._size, _WORDS)
        self._receives = [comm.Recv_init(each, self._left, Tag.DATA) for each in (self._head_in, self._incoming)]
        self._sends = [comm.Send_init(each, self._right, Tag.DATA) for each in (self._head, self.centre)]
        self._both = [*self._receives, *self._sends]
        self._close = weakref.finalize(self, close, self._receives, self._sends)
        self._tally = Tally()
        self._here = self._rank == 0  # the centre, before its first round
        self._lr = 0.0
        self._began = time.perf_counter()

    def begin(self) -> None:
        """See `Order`."""
        none = self._params[:0]
        elastic.forward(none, none, none, none, 0.0)
        self._waiter.soon(self._comm.Ibcast(self._params, 0).Test)
        self.centre[:] = self._params
        self._head_in[_LAST] = -1
        if self._here:
            self._incoming[:] = self._params
        else:
            MPI.Prequest.Startall(self._receives)
        self._metrics.restart()
        self._began = time.perf_counter()

    def note(self, samples: int, loss: float) -> None:
        """See `Order`. Lets the next centre come."""
        self._watch.check()
        if not self._here:
            self._watch.passed(self._receives)
        self._tally.note(samples, loss)

    def pull(self, rate: float, lr: float) -> None:
        """See `Order`. Waits for the centre and sends it on."""
        self._lr = lr
        self._take()
        elastic.forward(self.displacement, self._params, self._incoming, self.centre, rate)
        self._tell()
        self._head[_VERSION] += 1
        self.version = int(self._head[_VERSION])
        MPI.Prequest.Startall(self._both)

    def push(self) -> None:
        """See `Order`. Waits until the next worker has the centre."""
        self._sent()

    def _take(self) -> None:
        """Waits for the centre and what is told with it."""
        if self._here:
            self._here = False
        else:
            self._waiter.soon(self._came)
            self.bytes_received += self._incoming.nbytes + self._head_in.nbytes
        self._head[:] = self._head_in
        if self._rank == 0:
            self._count()
        self.stop = bool(self._head[_STOP])

    def _came(self) -> bool:
        return self._watch.passed(self._receives)

    def _sent(self) -> None:
        self._waiter.soon(self._gone)
        self.bytes_sent += self.centre.nbytes + self._head.nbytes

    def _gone(self) -> bool:
        return self._watch.passed(self._sends)

    def _tell(self) -> None:
        """Writes this worker's line."""
        tally, told, version = self._tally, self._told[self._rank], int(self._head[_VERSION])
        told[:_DONE] = tally.pushes, tally.samples, tally.loss, version - self.version
        self._head[_TOTAL] += tally.samples
        self.samples = int(self._head[_TOTAL])
        tally.clear()
        if self._rank == 0:
            self._count_line(0)
            self._metrics.progress(self.samples, version, self._lr)

    def _count(self) -> None:
        """Worker 0 counts what was told since its last turn, and says whether to stop."""
        self._head[_STOP] = self._metrics.stop
        for worker in range(1, self._size):
            self._count_line(worker)

    def _count_line(self, worker: int) -> None:
        pushes, samples, loss, staleness, *_ = self._told[worker].tolist()
        self._told[worker, :_DONE] = 0
        self._metrics.count(worker, int(pushes), int(samples), loss, int(staleness))

    def report(self, accuracy: float, loss: float) -> None:
        """See `Order`."""
        rounds.report(self._metrics, accuracy, loss)

    def finish(self, waited_s: float) -> None:
        """See `Order`."""
        computed = time.perf_counter() - self._began - waited_s
        while not self._hand_on(waited_s, computed):
            pass
        self.version, self.samples = int(self._head[_VERSION]), int(self._head[_TOTAL])
        if self._rank == 0:
            self._metrics.progress(self.samples, self.version, self._lr)
            for worker, told in enumerate(self._told.tolist()):
                self._metrics.ended(worker, told[_WAITED], told[_COMPUTED])
        self._close()
        self._watch.close()
        self._comm.Free()

    def _hand_on(self, waited_s: float, computed_s: float) -> bool:
        """Sends the centre on unchanged; whether this was the last time."""
        self._take()
        np.copyto(self.centre, self._incoming)
        last = int(self._head[_LAST])
        if last < 0:
            self._tell()
            self._told[self._rank, _DONE:] = 1, waited_s, computed_s
            if self._told[:, _DONE].all():
                self._head[_LAST] = self._rank
        if self._head[_LAST] < 0:
            MPI.Prequest.Startall(self._receives)
        if self._right != last:
            MPI.Prequest.Startall(self._sends)
            self._sent()
        return bool(self._head[_LAST] >= 0)
