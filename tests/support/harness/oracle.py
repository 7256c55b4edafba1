"""For tests of the Communicator: making one under given variables, verbs against NumPy, and errors on all ranks."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

from harness.channel import Guarded, expected, same_bits, values
from psgd import collectives

REDUCING = ("Allreduce", "Reduce", "Reduce_scatter", "Reduce_scatter_block")
VERBS = (*REDUCING, "Allgather", "Allgatherv", "Bcast")
SHARED = ("inline", "slots", "direct")
MESSAGES = {
    "Allreduce": ("ring", "recursive_doubling", "rabenseifner", "native"),
    "Reduce": ("binomial", "native"),
    "Reduce_scatter": ("ring", "native"),
    "Reduce_scatter_block": ("ring", "native"),
    "Allgather": ("ring", "native"),
    "Allgatherv": ("ring", "native"),
    "Bcast": ("binomial", "chain", "native"),
}


@contextlib.contextmanager
def communicator(comm: MPI.Intracomm, **variables: str) -> Iterator[Any]:
    """A Communicator made under these variables of the environment, freed where the body did not fail. Collective."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        made = collectives.Communicator(comm)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    yield made
    made.free()


@contextlib.contextmanager
def two_nodes() -> Iterator[None]:
    """Communicators made in here take even and odd ranks for two nodes."""
    from psgd.collectives import communicator as module

    real = module.ranks_of_node
    module.ranks_of_node = lambda comm: [rank for rank in range(comm.size) if rank % 2 == comm.rank % 2]
    try:
        yield
    finally:
        module.ranks_of_node = real


def operation(op: str) -> Any:
    """What a caller passes for it."""
    return op if op == "mean" else getattr(MPI, op)


def uneven(n: int, size: int) -> list[int]:
    """Counts that add up to n, one of them 0 where there are several."""
    if size == 1:
        return [n]
    weights = [rank * rank for rank in range(size)]
    cuts = [n * sum(weights[:rank]) // sum(weights) for rank in range(size)]
    return [b - a for a, b in zip(cuts, [*cuts[1:], n], strict=True)]


def check(comm: Any, verb: str, n: int, dtype: str, op: str = "SUM", algorithm: str | None = None) -> None:
    """One verb out of place and, where it has that, in place: results, guards, and inputs unchanged. Collective."""
    rank, size = comm.rank, comm.size
    root = n % size
    what = f"{verb} n={n} {dtype} {op} {algorithm}"
    given = {"algorithm": algorithm}
    if verb in {"Allreduce", "Reduce"}:
        mine, wanted = values(rank, n, dtype, op), expected(size, n, dtype, op)
        arguments = (operation(op),) if verb == "Allreduce" else (operation(op), root)
        for in_place in (False, True):
            send, recv = mine.copy(), Guarded(n, dtype)
            receives = verb == "Allreduce" or rank == root
            if in_place and receives:
                recv.array[:] = mine
            untouched = recv.array.tobytes()
            getattr(comm, verb)(MPI.IN_PLACE if in_place and receives else send, recv.array, *arguments, **given)
            assert np.array_equal(recv.array, wanted) if receives else recv.array.tobytes() == untouched, what
            assert recv.intact() and np.array_equal(send, mine), what
            assert verb == "Reduce" or same_bits(comm, recv.array), what
    elif verb.startswith("Reduce_scatter"):
        counts = uneven(n, size) if verb == "Reduce_scatter" else [n] * size
        first, total, own = sum(counts[:rank]), sum(counts), counts[rank]
        mine, wanted = values(rank, total, dtype, op), expected(size, total, dtype, op)[first : first + own]
        more = (counts, operation(op)) if verb == "Reduce_scatter" else (operation(op),)
        send, recv = mine.copy(), Guarded(own, dtype)
        getattr(comm, verb)(send, recv.array, *more, **given)
        assert np.array_equal(recv.array, wanted) and recv.intact() and np.array_equal(send, mine), what
        recv = Guarded(total, dtype)
        recv.array[:] = mine
        getattr(comm, verb)(MPI.IN_PLACE, recv.array, *more, **given)
        assert np.array_equal(recv.array[:own], wanted) and recv.intact(), f"{what} in place"
    elif verb == "Bcast":
        buf = Guarded(n, dtype)
        if rank == root:
            buf.array[:] = values(root, n, dtype)
        comm.Bcast(buf.array, root, **given)
        assert np.array_equal(buf.array, values(root, n, dtype)) and buf.intact(), what
    else:
        _check_gather(comm, verb, n, dtype, given, what)


def _check_gather(comm: Any, verb: str, n: int, dtype: str, given: dict[str, Any], what: str) -> None:
    rank, size = comm.rank, comm.size
    counts = [n] * size if verb == "Allgather" else uneven(n, size)
    gap = 0 if verb == "Allgather" else 3
    starts = [sum(counts[:r]) + gap * r for r in range(size)]
    if gap and rank % 2:  # where blocks go is each rank's own affair: here the other way round
        starts = [sum(counts[r + 1 :]) + gap * (size - r) for r in range(size)]
    own = slice(starts[rank], starts[rank] + counts[rank])
    mine = values(rank, counts[rank], dtype)
    for in_place in (False, True):
        send, recv = mine.copy(), Guarded(sum(counts) + gap * (size + 1), dtype)
        wanted = recv.array.copy()
        for r in range(size):
            wanted[starts[r] : starts[r] + counts[r]] = values(r, counts[r], dtype)
        if in_place:
            recv.array[own] = mine
        into = recv.array if verb == "Allgather" else [recv.array, (counts, starts)]
        getattr(comm, verb)(MPI.IN_PLACE if in_place else send, into, **given)
        assert recv.array.tobytes() == wanted.tobytes(), f"{what} in_place={in_place}"  # gaps too
        assert recv.intact() and np.array_equal(send, mine), what


def same_error(
    comm: MPI.Intracomm, call: Callable[[], Any], kind: type[BaseException], *words: str, within: float = 3.0
) -> str:
    """Asserts that a call raises one and the same error on all ranks, soon, with these words; returns its text."""
    start = time.monotonic()
    try:
        call()
        said = ("nothing", "returned")
    except Exception as error:
        said = (type(error).__name__ if isinstance(error, kind) else f"not a {kind.__name__}: {error!r}", str(error))
    seconds = time.monotonic() - start
    everyone = comm.allgather((*said, round(seconds, 2)))
    assert len({each[:2] for each in everyone}) == 1, everyone
    assert not everyone[0][0].startswith(("nothing", "not a")), everyone
    assert max(each[2] for each in everyone) < within, everyone
    assert all(word in said[1] for word in words), (words, said)
    return said[1]
