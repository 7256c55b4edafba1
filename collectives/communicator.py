"""mpi4py's collective verbs, carried out by psgd: the face of this package."""

import math
import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike, NDArray

from psgd.collectives.algorithms import intranode
from psgd.collectives.algorithms.catalog import number
from psgd.collectives.arguments import descriptor, parse
from psgd.collectives.arguments.call import Call
from psgd.collectives.dispatch import tuning
from psgd.collectives.dispatch.dispatch import available, check_algorithm, steps
from psgd.collectives.dispatch.engine import Engine
from psgd.collectives.dispatch.nonblocking import Request, RequestQueue
from psgd.collectives.fastpath.fast_path import FastPath
from psgd.collectives.mpi.agreement import together
from psgd.collectives.mpi.env import Variables
from psgd.collectives.mpi.node import ranks_of_node
from psgd.collectives.mpi.wait import Steps, cores_per_rank
from psgd.collectives.shm.registered import Node
from psgd.kernels.errors import AgreedUsageError, UsageError


class Communicator:
    """A communicator whose collectives are psgd's; all other names are the wrapped one's.

    The verbs take mpi4py's arguments. They block until this rank's buffers may be used again; the I-verbs return a
    request. All ranks must call them in the same order. Results have the same bits on all ranks, and from run to run
    for the same number of ranks, size and algorithm. float16 and bfloat16 are summed in float32.

    Args:
        comm: any intracommunicator. Creating is collective over it. psgd duplicates it twice and never uses it itself.

    Attributes:
        comm: the wrapped communicator.
        rank: of this process.
        size: number of ranks.

    Raises (making one):
        UsageError: `comm` is none, or a variable of docs/collectives.md is wrong on some rank; the latter on all ranks.
        MemoryError: some rank has none; on all ranks.

    Raises (every verb):
        UsageError: some rank's own arguments are wrong; on all ranks.
        ContractError: ranks passed different calls, counts, dtypes, operations or roots; on all ranks.
        PeerLostError: a rank ended, or left a call in the middle.
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
            heads = np.empty(self.size, np.int64)
            first.Allgather(np.array([ranks[0]], np.int64), heads)
            leaders = sorted(set(heads.tolist()))
            cores = cores_per_rank(first)
            self._tuned = tuning.load(first, len(leaders))
            self._node = Node.create(first, ranks) if self.size > 1 else None
            together(first, "Communicator", lambda: self._begin(lanes, leaders, cores, variables))
        except BaseException:
            for lane in lanes:
                lane.Free()
            raise
        finally:
            first.Free()
        self._freed = False

    def _begin(self, lanes: Sequence[MPI.Intracomm], leaders: list[int], cores: float, variables: Variables) -> None:
        """Makes what is this rank's own, without a word to others."""
        blocking, other = (Engine(lane, self._node, i, cores < 1, leaders, variables) for i, lane in enumerate(lanes))
        self._engine = blocking
        spare = cores >= 2 and len(os.sched_getaffinity(0)) >= 2
        self._queue = RequestQueue(other, spare if variables.progress is None else variables.progress)
        if self._node is not None:
            self._node.use(blocking.comm)
        self.nodes = len(leaders)
        self._hierarchical = self._node is not None and not blocking.local and self.nodes < self.size
        self._limits: dict[str, tuning.Limits] = {}
        self._fast = FastPath(blocking, self._limits_of)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "comm":
            raise AttributeError(name)
        return getattr(self.comm, name)

    @property
    def threaded(self) -> bool:
        """Whether non-blocking calls go on by themselves on this rank, by a progress thread."""
        return self._queue.threaded

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
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op | str = MPI.SUM,
        *,
        algorithm: str | None = None,
        stream: Any = None,
    ) -> None:
        """Reduces everyone's values; all ranks get the result. `sendbuf` may be `MPI.IN_PLACE`.

        Args:
            sendbuf: n elements, not changed; or MPI.IN_PLACE.
            recvbuf: n elements.
            op: MPI.SUM, PROD, MIN, MAX or collectives.MEAN; MPI's other operations go to MPI.
            algorithm: a name of docs/collectives.md instead of the table's choice; the same on all ranks.
            stream: of CuPy, PyTorch or Numba, or its address: the work on it so far is waited for before device arrays
                are read or written; by default that on their library's current stream. The result is there on return.
        """
        if algorithm is None and self._fast.allreduce(sendbuf, recvbuf, op):
            return
        self._run("Allreduce", lambda: parse.allreduce(self.size, sendbuf, recvbuf, op), algorithm, stream)

    def Reduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op | str = MPI.SUM,
        root: int = 0,
        *,
        algorithm: str | None = None,
        stream: Any = None,
    ) -> None:
        """Reduces everyone's values to `root`, the only rank whose `recvbuf` is used and that may pass MPI.IN_PLACE."""
        self._run("Reduce", lambda: parse.reduce(self.size, self.rank, sendbuf, recvbuf, op, root), algorithm, stream)

    def Reduce_scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: MPI.Op | str = MPI.SUM,
        *,
        algorithm: str | None = None,
        stream: Any = None,
    ) -> None:
        """Reduces everyone's values; rank r gets the next `recvcounts[r]` elements of the result."""
        self._run("Reduce_scatter", self._reduce_scatter(sendbuf, recvbuf, recvcounts, op), algorithm, stream)

    def Reduce_scatter_block(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op | str = MPI.SUM,
        *,
        algorithm: str | None = None,
        stream: Any = None,
    ) -> None:
        """Reduces everyone's values; each rank gets an equal block of the result."""
        if algorithm is None and self._fast.reduce_scatter_block(sendbuf, recvbuf, op):
            return
        self._run("Reduce_scatter_block", self._reduce_scatter_block(sendbuf, recvbuf, op), algorithm, stream)

    def Allgather(self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, stream: Any = None) -> None:
        """Gathers equal blocks of all ranks on all ranks."""
        if algorithm is None and self._fast.allgather(sendbuf, recvbuf):
            return
        self._run("Allgather", lambda: parse.allgather(self.size, self.rank, sendbuf, recvbuf), algorithm, stream)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, stream: Any = None) -> None:
        """Gathers blocks of any lengths; `recvbuf` is `[buffer, counts]` or `[buffer, counts, displacements, type]`."""
        self._run("Allgatherv", lambda: parse.allgatherv(self.size, self.rank, sendbuf, recvbuf), algorithm, stream)

    def Bcast(self, buf: Any, root: int = 0, *, algorithm: str | None = None, stream: Any = None) -> None:
        """Copies the root's values to all ranks."""
        if algorithm is None and self._fast.bcast(buf, root):
            return
        self._run("Bcast", lambda: parse.bcast(self.size, self.rank, buf, root), algorithm, stream)

    def Barrier(self) -> None:
        """Returns once all ranks have called it."""
        if self._fast.barrier():
            return
        self._run("Barrier", lambda: Call("Barrier"), None)

    def Iallreduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op | str = MPI.SUM,
        *,
        algorithm: str | None = None,
        stream: Any = None,
    ) -> Request:
        """As Allreduce, at once; the buffers are psgd's until the request is done."""
        return self._start("Allreduce", lambda: parse.allreduce(self.size, sendbuf, recvbuf, op), algorithm, stream)

    def Ireduce_scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: MPI.Op | str = MPI.SUM,
        *,
        algorithm: str | None = None,
        stream: Any = None,
    ) -> Request:
        """As Reduce_scatter, at once."""
        return self._start("Reduce_scatter", self._reduce_scatter(sendbuf, recvbuf, recvcounts, op), algorithm, stream)

    def Ireduce_scatter_block(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: MPI.Op | str = MPI.SUM,
        *,
        algorithm: str | None = None,
        stream: Any = None,
    ) -> Request:
        """As Reduce_scatter_block, at once."""
        return self._start("Reduce_scatter_block", self._reduce_scatter_block(sendbuf, recvbuf, op), algorithm, stream)

    def Iallgather(self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, stream: Any = None) -> Request:
        """As Allgather, at once."""
        return self._start(
            "Allgather", lambda: parse.allgather(self.size, self.rank, sendbuf, recvbuf), algorithm, stream
        )

    def empty(self, shape: int | Sequence[int], dtype: DTypeLike = np.float64) -> NDArray[Any]:
        """An array in registered memory, zero at first, which all ranks of the node reduce where it lies.

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
                raise UsageError(f"expected a shape that fits some machine, got {nbytes} bytes for {shape!r}")
            calls.append(Call("empty", count=nbytes, shape=extents))
            return calls[0]

        self._run("empty", parse, None)
        call = calls[0]
        if self._node is None:
            return np.zeros(call.shape, dtype)
        memory = self._node.register(call.count)
        for engine in (self._engine, self._queue.engine):
            assert engine.shared is not None
            engine.shared.remap()
        return memory.view(dtype).reshape(call.shape)

    def algorithm(self, verb: str, nbytes: int) -> str:
        """The algorithm that a call on a vector of that size takes: its order of summing decides a sum's last bits."""
        return "copy" if self.size == 1 else tuning.choose(self._limits_of(verb), nbytes)

    def free(self) -> None:
        """Waits for non-blocking calls and frees what this communicator holds; the wrapped one stays.

        Collective. Does nothing the second time.
        """
        if self._freed:
            return
        self._queue.close()
        self._freed = True
        self._fast = FastPath()
        self._engine.free()
        if self._node is not None:
            self._node.close()

    def _reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None, op: MPI.Op | str
    ) -> Callable[[], Call]:
        return lambda: parse.reduce_scatter(self.size, self.rank, sendbuf, recvbuf, recvcounts, op)

    def _reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op | str) -> Callable[[], Call]:
        return lambda: parse.reduce_scatter_block(self.size, self.rank, sendbuf, recvbuf, op)

    def _run(self, verb: str, parse: Callable[[], Call], algorithm: str | None, stream: Any = None) -> None:
        self._check_usable()
        self._engine.run(self._steps(self._engine, verb, parse, algorithm, stream))

    def _start(self, verb: str, parse: Callable[[], Call], algorithm: str | None, stream: Any = None) -> Request:
        self._check_usable()
        return self._queue.start(self._steps(self._queue.engine, verb, parse, algorithm, stream))

    def _steps(self, engine: Engine, verb: str, parse: Callable[[], Call], algorithm: str | None, stream: Any) -> Steps:
        """Parses a call and makes its steps, which report wrong arguments to the other ranks."""
        call, text = None, ""
        try:
            call = parse() if stream is None else _on_stream(stream, parse)
            if algorithm is not None:
                check_algorithm(verb, algorithm, engine, call)
        except Exception as error:  # whatever it is, the others must hear of it, or they wait for ever
            call, text = None, f"{verb}: {error if isinstance(error, UsageError) else repr(error)}"
            if self.size == 1:
                raise
        if self.size == 1:
            assert call is not None
            return _alone(call)
        if call is None:
            return steps(engine, verb, None, text, "?", 0)
        name = algorithm or self._choose(engine, call)
        sign = descriptor.signature(verb, call.kind, call.op, call.root, 0 if algorithm is None else number(algorithm))
        if call.job is not None:
            sign |= descriptor.ON_DEVICE
        return steps(engine, verb, call, "", name, sign)

    def _choose(self, engine: Engine, call: Call) -> str:
        if call.op is not None and call.op.code < 0:
            return "native"
        name = tuning.choose(self._limits_of(call.verb), call.nbytes)
        if name == "inline" and not intranode.fits_inline(call):
            return "slots"
        return name

    def _limits_of(self, verb: str) -> tuning.Limits:
        if verb not in self._limits:
            limits = tuning.built_in(verb, self.size, self._engine.local, self._hierarchical)
            tuned = self._tuned.get(tuning.family(verb), [])
            known = available(verb, self._engine)
            self._limits[verb] = tuned if tuned and all(name in known for _, name in tuned) else limits
        return self._limits[verb]

    def _check_usable(self) -> None:
        if self._freed:
            raise UsageError("this communicator was freed; make a new one")


def _on_stream(stream: Any, parse: Callable[[], Call]) -> Call:
    """Parses arguments of which the caller has said on which stream they are worked on."""
    from psgd.collectives.arguments.device_arrays import on_stream

    with on_stream(stream):
        return parse()


def _alone(call: Call) -> Steps:
    """One rank: the result is a copy."""
    if call.send is not None and call.recv is not None:
        own = call.ranges(1)[0]
        start, length = own.start, len(own)
        target = call.recv[start : start + length] if call.op is None else call.recv
        source = call.send if call.op is None or call.send.size == target.size else call.send[start : start + length]
        if target is not source:
            target[...] = source
    call.done()
    yield from ()


def _agree_on_checks(comm: MPI.Intracomm, variables: Variables) -> None:
    """Refuses ranks of which only some exchange lines before each call: the first call would never end."""
    both = np.array([variables.checks, not variables.checks], np.int64)
    comm.Allreduce(MPI.IN_PLACE, both, MPI.MAX)
    if both.all():
        raise AgreedUsageError(
            "PSGD_CHECK: expected the same on all ranks, got 1 on some only; pass it on with mpirun -x"
        )
