"""mpi4py's collective verbs, carried out by psgd: the face of this package."""

import math
import os
import secrets
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike, NDArray

from psgd.collectives.arguments import parse
from psgd.collectives.arguments.call import Call
from psgd.collectives.arguments.operations import AnyOp
from psgd.collectives.dispatch import tuning
from psgd.collectives.dispatch.engine import Engine
from psgd.collectives.dispatch.nonblocking import Request, RequestQueue
from psgd.collectives.dispatch.planner import CallPlan, Planner
from psgd.collectives.fastpath.fast_path import FastPath
from psgd.collectives.fastpath.persistent import Prequest, prepare
from psgd.collectives.mpi.agreement import together
from psgd.collectives.mpi.env import Variables
from psgd.collectives.mpi.node import ranks_of_node
from psgd.collectives.mpi.wait import cores_per_rank
from psgd.collectives.shm.registered import Node
from psgd.collectives.started_verbs import StartedVerbs
from psgd.kernels.errors import AgreedUsageError, UsageError


class Communicator(StartedVerbs):
    """A communicator whose collectives are psgd's; all other names are the wrapped one's.

    The verbs take mpi4py's arguments. They block until this rank's buffers may be used again; the I-verbs and the
    `..._init` verbs return a request. All ranks must call them in the same order. Results have the same bits on all
    ranks, and from run to run for the same number of ranks, size and algorithm. float16 and bfloat16 are summed in
    float32.

    Args:
        comm: any intracommunicator. Creating is collective over it. psgd duplicates it twice and never uses it itself.

    Attributes:
        comm: the wrapped communicator.
        rank: of this process.
        size: number of ranks.

    Raises (making one):
        UsageError: `comm` is not an intracommunicator; or, on all ranks, a variable of docs/collectives.md is wrong.
        MemoryError: some rank is out of memory; on all ranks.

    Raises (every verb):
        UsageError: some rank's own arguments are wrong; on all ranks.
        ContractError: ranks passed different calls, counts, dtypes, operations or roots; on all ranks.
        PeerLostError: a rank ended, or left a call before its end.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
            raise UsageError(f"Communicator: expected an mpi4py intracommunicator, got {comm!r}")
        self.comm = comm
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        first, *lanes = (comm.Dup() for _ in range(3))
        try:
            variables = together(first, "Communicator", Variables.read)
            _agree_on_checks(first, variables)
            ranks = ranks_of_node(first)
            facts = np.empty((self.size, 2), np.int64)
            first.Allgather(np.array([ranks[0], secrets.randbits(62)], np.int64), facts)
            leaders, token = sorted(set(facts[:, 0].tolist())), int(facts[0, 1])
            cores = cores_per_rank(first)
            self._tuned = tuning.load(first, len(leaders))
            self._node = Node.create(first, ranks) if self.size > 1 else None
            together(first, "Communicator", lambda: self._begin(lanes, leaders, cores, variables, token))
        except BaseException:
            for lane in lanes:
                lane.Free()
            raise
        finally:
            first.Free()
        self._freed = False

    def _begin(
        self, lanes: Sequence[MPI.Intracomm], leaders: list[int], cores: float, variables: Variables, token: int
    ) -> None:
        """Makes what is this rank's own, without communication."""
        blocking = Engine(lanes[0], self._node, 0, cores < 1, leaders, variables, token)
        other = Engine(lanes[1], self._node, 1, cores < 1, leaders, variables, token, blocking)
        self._engine = blocking
        spare = cores >= 2 and len(os.sched_getaffinity(0)) >= 2
        self._queue = RequestQueue(other, spare if variables.progress is None else variables.progress)
        if self._node is not None:
            self._node.use(blocking.comm)
        self.nodes = len(leaders)
        hierarchical = self._node is not None and not blocking.local and self.nodes < self.size
        self._planner = Planner(blocking, self._tuned, hierarchical)
        self._fast = FastPath(blocking, self._planner.limits_of)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "comm":
            raise AttributeError(name)
        return getattr(self.comm, name)

    @property
    def threaded(self) -> bool:
        """Whether a progress thread carries out non-blocking calls on this rank."""
        return self._queue.threaded

    def threaded_on_all(self) -> bool:
        """Returns whether progress threads carry out non-blocking calls on all ranks. Collective, blocks."""
        flag = np.array([self.threaded], np.int64)
        self.Allreduce(MPI.IN_PLACE, flag, MPI.MIN)
        return bool(flag[0])

    @property
    def reads_private_memory(self) -> bool:
        """Whether all ranks are on one node, where each may read the others' memory. The same on all ranks."""
        return self._node is not None and self.nodes == 1 and self._node.reads

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.free()

    def __repr__(self) -> str:
        return f"<psgd.collectives.Communicator: rank {self.rank} of {self.size} on {self.nodes} node(s)>"

    @property
    def last(self) -> tuple[str, str]:
        """Algorithm and transport of this rank's last blocking call."""
        return self._engine.last

    def Allreduce(
        self, sendbuf: Any, recvbuf: Any, op: AnyOp = MPI.SUM, *, algorithm: str | None = None, stream: Any = None
    ) -> None:
        """Reduces everyone's values; all ranks get the result. `sendbuf` may be `MPI.IN_PLACE`.

        Args:
            sendbuf: n elements, not changed; or MPI.IN_PLACE.
            recvbuf: n elements.
            op: MPI.SUM, PROD, MIN, MAX or collectives.MEAN; MPI's other operations go to MPI.
            algorithm: a name of docs/collectives.md instead of the table's choice; the same on all ranks.
            stream: of CuPy, PyTorch or Numba, or its address. The call waits for the work on it before it reads or
                writes device arrays; by default, for that on their library's current stream. The result is complete
                on return.
        """
        if algorithm is None:
            if self._fast.allreduce(sendbuf, recvbuf, op):
                return
            ways = self._engine.ways
            if ways is not None and ways.allreduce(sendbuf, recvbuf, op, stream):
                return
        self._run("Allreduce", (sendbuf, recvbuf, op), algorithm, stream)

    def Allreduce_enqueue(self, sendbuf: Any, recvbuf: Any, op: AnyOp = MPI.SUM, *, stream: Any = None) -> None:
        """Like Allreduce, of device arrays, put on a CUDA stream: work started there afterwards sees the result.

        Returns at once where GPUs are peers and the same arguments were passed before; otherwise it blocks. On a stream
        that is being captured, the call becomes part of the CUDA graph, and is carried out whenever that is launched,
        in the same order on all ranks. If ranks have passed different calls, or one has ended, a later call raises.
        """
        ways = self._engine.ways
        if ways is None or not ways.allreduce(sendbuf, recvbuf, op, stream, waits=False):
            self._run("Allreduce", (sendbuf, recvbuf, op), None, stream)

    def Reduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: AnyOp = MPI.SUM,
        root: int = 0,
        *,
        algorithm: str | None = None,
        stream: Any = None,
    ) -> None:
        """Reduces everyone's values to `root`, the only rank whose `recvbuf` is used and that may pass MPI.IN_PLACE."""
        self._run("Reduce", (sendbuf, recvbuf, op, root), algorithm, stream)

    def Reduce_scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: AnyOp = MPI.SUM,
        *,
        algorithm: str | None = None,
        stream: Any = None,
    ) -> None:
        """Reduces everyone's values; rank r gets the next `recvcounts[r]` elements of the result.

        `recvbuf` may be this rank's block of `sendbuf`; the rest of that is not changed.
        """
        self._run("Reduce_scatter", (sendbuf, recvbuf, recvcounts, op), algorithm, stream)

    def Reduce_scatter_block(
        self, sendbuf: Any, recvbuf: Any, op: AnyOp = MPI.SUM, *, algorithm: str | None = None, stream: Any = None
    ) -> None:
        """Reduces everyone's values; each rank gets an equal block of the result."""
        if algorithm is None and self._fast.reduce_scatter_block(sendbuf, recvbuf, op):
            return
        self._run("Reduce_scatter_block", (sendbuf, recvbuf, op), algorithm, stream)

    def Allgather(self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, stream: Any = None) -> None:
        """Gathers equal blocks of all ranks on all ranks."""
        if algorithm is None and self._fast.allgather(sendbuf, recvbuf):
            return
        self._run("Allgather", (sendbuf, recvbuf), algorithm, stream)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, stream: Any = None) -> None:
        """Gathers blocks of any lengths; `recvbuf` is `[buffer, counts]` or `[buffer, counts, displacements, type]`."""
        self._run("Allgatherv", (sendbuf, recvbuf), algorithm, stream)

    def Bcast(self, buf: Any, root: int = 0, *, algorithm: str | None = None, stream: Any = None) -> None:
        """Copies the root's values to all ranks."""
        if algorithm is None and self._fast.bcast(buf, root):
            return
        self._run("Bcast", (buf, root), algorithm, stream)

    def Barrier(self) -> None:
        """Returns once all ranks have called it."""
        if self._fast.barrier():
            return
        self._run("Barrier", (), None)

    def empty(self, shape: int | Sequence[int], dtype: DTypeLike = np.float64) -> NDArray[Any]:
        """Returns an array of zeros in registered memory, which the ranks of a node reduce in place.

        Collective, blocks; all ranks pass the same. The memory lives as long as the array and its views, and is mapped
        by the other ranks until all have dropped theirs and `empty` is called again, or until `free`. Where ranks share
        no memory it is a plain array.

        Raises:
            MemoryError: some rank cannot get it; on all ranks.
        """
        calls: list[Call] = []

        def parse() -> Call:
            element = np.dtype(dtype)
            extents = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(n) for n in shape)
            if element.hasobject or min(extents, default=0) < 0:
                raise UsageError(f"expected a shape and a dtype of numbers, got {shape!r} and {dtype}")
            nbytes = math.prod(extents) * element.itemsize
            if nbytes >= 2**62:
                raise UsageError(f"expected a shape that fits in memory, got {nbytes} bytes for {shape!r}")
            calls.append(Call("empty", count=nbytes, shape=extents))
            return calls[0]

        self._check_usable()
        self._engine.run(self._planner.plan("empty", parse, None, None).steps(self._engine))
        call = calls[0]
        if self._node is None:
            return np.zeros(call.shape, dtype)
        memory = self._node.register(call.count)
        self._remap()
        return memory.view(dtype).reshape(call.shape)

    def adopt(self, other: "Communicator") -> None:
        """Arrays of `other.empty` count as registered here too, from now on. On all ranks; does not communicate.

        Args:
            other: of these ranks and more, some of which may be dead.
        """
        if self._node is None or other._node is None:
            return
        theirs = self.comm.Get_group().Translate_ranks(self._node.ranks, other.comm.Get_group())
        self._node.adopt(other._node, [other._node.ranks.index(rank) for rank in theirs])
        self._remap()

    def _remap(self) -> None:
        for engine in (self._engine, self._queue.engine):
            assert engine.shared is not None
            engine.shared.remap()

    def algorithm(self, verb: str, nbytes: int) -> str:
        """The algorithm that a call on a vector of that size takes: its order of summing decides a sum's last bits."""
        return "copy" if self.size == 1 else tuning.choose(self._planner.limits_of(verb), nbytes)

    def free(self) -> None:
        """Waits for non-blocking calls and frees what this communicator holds; the wrapped one stays.

        Collective. Does nothing the second time.

        Raises:
            ContractError: ranks have disagreed on the last calls; on all ranks.
            UsageError: some rank's arguments of them were wrong; on all ranks.
        """
        if self._freed:
            return
        self._queue.close()
        self._engine.end()
        self._freed = True
        self._fast = FastPath()
        self._queue.engine.free()
        self._engine.free()
        if self._node is not None:
            self._node.close()

    def revoke(self) -> None:
        """Ends all calls of this communicator, on all ranks, with an error; where MPI has ULFM. Does not block."""
        for engine in (self._engine, self._queue.engine):
            if not engine.comm.Is_revoked():
                engine.comm.Revoke()

    def _run(self, verb: str, arguments: tuple[Any, ...], algorithm: str | None, stream: Any = None) -> None:
        self._engine.run(self._plan(verb, arguments, algorithm, stream).steps(self._engine))

    def _start(self, verb: str, arguments: tuple[Any, ...], algorithm: str | None, stream: Any = None) -> Request:
        plan, engine = self._plan(verb, arguments, algorithm, stream), self._queue.engine
        return self._queue.start(plan.steps(engine), plan.in_memory(engine))

    def _prepare(self, verb: str, arguments: tuple[Any, ...], algorithm: str | None, stream: Any = None) -> Prequest:
        self._check_usable()
        return prepare(self._queue, lambda: self._plan(verb, arguments, algorithm, stream), self._check_usable)

    def _plan(self, verb: str, arguments: tuple[Any, ...], algorithm: str | None, stream: Any) -> CallPlan:
        self._check_usable()
        return self._planner.plan(verb, lambda: parse.VERBS[verb](self.size, self.rank, *arguments), algorithm, stream)

    def _check_usable(self) -> None:
        if self._freed:
            raise UsageError("this communicator was freed; create a new one")


def _agree_on_checks(comm: MPI.Intracomm, variables: Variables) -> None:
    """Refuses ranks of which only some exchange lines before each call: the first call would never end."""
    both = np.array([variables.checks, not variables.checks], np.int64)
    comm.Allreduce(MPI.IN_PLACE, both, MPI.MAX)
    if both.all():
        raise AgreedUsageError(
            "PSGD_CHECK: expected the same on all ranks, got 1 on some only; pass it on with mpirun -x"
        )
