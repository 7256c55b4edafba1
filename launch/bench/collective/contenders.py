"""Those that are measured against each other on MPI's ranks: the same call on the same values, by psgd and MPI."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.launch.bench.collective.table import (
    MPI_IN_PLACE,
    MPI_NAME,
    MPI_PERSISTENT,
    PERSISTENT,
    PRIVATE,
    REGISTERED,
    REGISTERED_IN_PLACE,
)
from psgd.launch.bench.problem import (
    ALLGATHER,
    BCAST,
    REDUCE_SCATTER,
    VERBS,
    BenchOptions,
    Problem,
)

OPS = {"sum": MPI.SUM, "mean": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX}


@dataclass(frozen=True)
class Contender:
    """One way to carry out the call.

    Attributes:
        name: as in tables.
        call: the collective; blocks.
        takes: where it reads this rank's values; None where this rank has none to give.
        memory: the buffer that it writes.
        result: the part of it that it must write.
        ours: it is psgd's.
        request: what the call starts, where it is persistent.
    """

    name: str
    call: Callable[[], object]
    takes: NDArray[Any] | None
    memory: NDArray[Any]
    result: NDArray[Any]
    ours: bool = False
    request: Any = None

    def fill(self, source: NDArray[Any]) -> None:
        """Rewrites this rank's values, as a program that computes new ones does."""
        if self.takes is not None:
            np.copyto(self.takes, source)

    def free(self) -> None:
        """Frees what it holds beside its memory."""
        if self.request is not None:
            self.request.Free()


@dataclass(frozen=True)
class Buffers:
    """Memory for one problem. `whole` is that of calls in place: the larger of the two."""

    send: NDArray[Any]
    recv: NDArray[Any]
    whole: NDArray[Any]

    @classmethod
    def make(cls, problem: Problem, empty: Callable[..., NDArray[Any]]) -> "Buffers":
        """Allocates by `empty(shape, dtype)`, which may be collective; a broadcast needs one buffer only."""
        recv = empty(problem.receives, problem.dtype)
        send = recv if problem.collective == BCAST else empty(problem.sends, problem.dtype)
        return cls(send, recv, send if problem.collective == REDUCE_SCATTER else recv)


def build(problem: Problem, options: BenchOptions, comm: MPI.Intracomm, ours: Any) -> list[Contender]:
    """All contenders of a problem that run on MPI's ranks. Collective.

    Args:
        problem: this rank's.
        options: which of them.
        comm: for MPI.
        ours: a psgd.collectives.Communicator on the same ranks.
    """
    chosen = {} if options.algorithm is None else {"algorithm": options.algorithm}
    op = {"mean": "mean"}.get(options.op, OPS[options.op])
    result: list[Contender] = []
    if options.buffers != "private":
        registered = Buffers.make(problem, ours.empty)
        result.append(out_of_place(REGISTERED, ours, problem, registered, op, **chosen))
        if problem.collective != BCAST:
            result.append(in_place(REGISTERED_IN_PLACE, ours, problem, registered, op, **chosen))
    private = Buffers.make(problem, np.empty)
    if options.buffers != "registered":
        result.insert(0, out_of_place(PRIVATE, ours, problem, private, op, **chosen))
        result[1:1] = persistent(PERSISTENT, ours, problem, private, op, **chosen)
    if options.peers:
        result.append(plain_mpi(problem, options, comm, private))
        bound = persistent(MPI_PERSISTENT, comm, problem, private, OPS[options.op])
        result += [_mean(each, options, problem.size) for each in bound]
        if problem.collective != BCAST:
            there = in_place(MPI_IN_PLACE, comm, problem, private, OPS[options.op])
            result.append(_mean(there, options, problem.size))
    return result


def plain_mpi(problem: Problem, options: BenchOptions, comm: MPI.Intracomm, buffers: Buffers) -> Contender:
    """MPI's own blocking call, out of place."""
    return _mean(out_of_place(MPI_NAME, comm, problem, buffers, OPS[options.op]), options, problem.size)


def out_of_place(name: str, comm: Any, problem: Problem, buffers: Buffers, op: Any, **chosen: str) -> Contender:
    """The call from `send` to `recv`, by mpi4py's verb of `comm`."""
    send, recv = buffers.send, buffers.recv
    call = partial(getattr(comm, VERBS[problem.collective]), *_arguments(problem, buffers, op), **chosen)
    return Contender(name, call, _taken(problem, send), recv, recv, not isinstance(comm, MPI.Comm))


def persistent(name: str, comm: Any, problem: Problem, buffers: Buffers, op: Any, **chosen: str) -> list[Contender]:
    """The same call, bound once and started each time; none where the MPI has no persistent collectives. Collective."""
    with suppress(MPI.Exception, NotImplementedError, AttributeError):
        request = getattr(comm, f"{VERBS[problem.collective]}_init")(*_arguments(problem, buffers, op), **chosen)
        made = out_of_place(name, comm, problem, buffers, op)
        return [replace(made, call=request.run if made.ours else partial(_start_and_wait, request), request=request)]
    return []


def _start_and_wait(request: MPI.Prequest) -> None:
    request.Start()
    request.Wait()


def _arguments(problem: Problem, buffers: Buffers, op: Any) -> tuple[Any, ...]:
    if problem.collective == BCAST:
        return buffers.recv, 0
    return (buffers.send, buffers.recv) if problem.collective == ALLGATHER else (buffers.send, buffers.recv, op)


def in_place(name: str, comm: Any, problem: Problem, buffers: Buffers, op: Any, **chosen: str) -> Contender:
    """The call in place, by mpi4py's verb of `comm`."""
    verb, whole = getattr(comm, VERBS[problem.collective]), buffers.whole
    reduces = (op,) if problem.collective != ALLGATHER else ()
    call = partial(verb, MPI.IN_PLACE, whole, *reduces, **chosen)
    return Contender(name, call, whole[problem.own], whole, whole[problem.kept], not isinstance(comm, MPI.Comm))


def _taken(problem: Problem, send: NDArray[Any]) -> NDArray[Any] | None:
    return None if problem.collective == BCAST and problem.rank else send


def _mean(contender: Contender, options: BenchOptions, size: int) -> Contender:
    """MPI has no mean: its user divides the sum."""
    if not options.reduces or options.op != "mean":
        return contender
    call, result = contender.call, contender.result

    def mean() -> None:
        call()
        np.divide(result, size, out=result)

    return replace(contender, call=mean)
