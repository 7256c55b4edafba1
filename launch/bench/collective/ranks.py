"""What each rank of `psgd bench allreduce` and its like does: verify every contender, then time all in turns."""

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.kernels.errors import AgreedError
from psgd.launch.bench.collective.contenders import Contender, build
from psgd.launch.bench.collective.table import Row
from psgd.launch.bench.peers.gloo import Gloo
from psgd.launch.bench.problem import BenchOptions, Problem

FRESH_BYTES = 64 * 1024  # from here on one call is timed at a time, on values just written
BUDGET_S = 1.2
LOOP_S = 0.02
FEWEST, MOST = 5, 200


class WrongResultError(AgreedError):
    """A contender's result is not what it must be."""


def measure(
    comm: MPI.Intracomm, options: BenchOptions, sizes: Sequence[int], ours: Any, gloo: Gloo | None
) -> Iterator[Row]:
    """Verifies and times each size in turn; collective, so all ranks must take every row.

    Args:
        comm: all ranks.
        options: what is measured.
        sizes: bytes of the whole vector.
        ours: a psgd.collectives.Communicator on `comm`.
        gloo: Gloo on `comm`, or None.

    Yields:
        One row for each size, the same on all ranks.

    Raises:
        WrongResultError: some contender errs, on all ranks.
        UsageError: psgd does not have the algorithm for this, on all ranks.
    """
    for nbytes in sizes:
        problem = Problem(options, nbytes, comm.rank, comm.size)
        source = problem.source()
        contenders = build(problem, options, comm, ours, gloo)
        able, used = verify(comm, problem, contenders, source, ours)
        seconds = timed(comm, able, source, problem.nbytes, options.repeats)
        medians = np.median(seconds, axis=1)
        yield Row(
            problem.nbytes,
            comm.size,
            seconds.shape[1],
            mpi_name(),
            {contender.name: float(value) for contender, value in zip(able, medians, strict=True)},
            used,
        )
        for contender in contenders:
            contender.free()
        del able, contender, contenders, source  # before the next size's buffers are made


def verify(
    comm: MPI.Intracomm, problem: Problem, contenders: Sequence[Contender], source: NDArray[Any], ours: Any
) -> tuple[list[Contender], dict[str, tuple[str, str]]]:
    """Calls each contender once and compares every element with the oracle's. Collective.

    Returns:
        The contenders without those peers that cannot do this call at all, such as an MPI without float16; and
        psgd's algorithm and transport, by contender.

    Raises:
        WrongResultError: naming the contender and the first wrong element of the first rank that has one.
    """
    expected = problem.expected()
    able, used = [], {}
    wrong_value = -1 if problem.dtype.kind != "u" else np.iinfo(problem.dtype).max
    for contender in contenders:
        contender.memory.fill(wrong_value)
        contender.fill(source)
        report = np.full((1, 2), -1, np.int64)
        try:
            contender.call()
        except (MPI.Exception, RuntimeError, LookupError, TypeError, ValueError):
            if contender.ours:
                raise
            report[0, 0] = 1
        else:
            wrong = contender.result != expected
            report[0, 1] = int(wrong.argmax()) if wrong.any() else -1
        reports = np.empty((comm.size, 2), np.int64)
        comm.Allgather(report, reports)
        if reports[:, 0].max() == 1:
            continue
        if reports[:, 1].max() >= 0:
            _complain(comm, problem, contender, expected, reports[:, 1])
        able.append(contender)
        if contender.ours:
            last = (contender.request or ours).last
            used[contender.name] = last if comm.size > 1 else ("copy", "none")
    return able, used


def _complain(
    comm: MPI.Intracomm, problem: Problem, contender: Contender, expected: NDArray[Any], wrong: NDArray[np.int64]
) -> None:
    rank = int(np.flatnonzero(wrong >= 0)[0])
    index = int(wrong[rank])
    values = np.zeros(2)
    if comm.rank == rank:
        values[:] = contender.result[index], expected[index]
    comm.Bcast(values, rank)
    raise WrongResultError(
        f"bench {problem.collective}: {contender.name}, {problem.nbytes} bytes of {problem.dtype}: wrong result on "
        f"rank {rank}: element {index} is {values[0]:g}, expected {values[1]:g}"
    )


def timed(
    comm: MPI.Intracomm, contenders: Sequence[Contender], source: NDArray[Any], nbytes: int, repeats: int | None
) -> NDArray[np.float64]:
    """Seconds of one call of each contender in each round, of the slowest rank. Collective.

    In each round all have their turn, in an order that changes. Each rewrites its values before, untimed. Under
    FRESH_BYTES several calls are timed together, and divided.

    Returns:
        float64 (contenders, rounds).
    """
    _rounds(comm, contenders, source, 1, 1)
    once = _rounds(comm, contenders, source, 1, 1)
    inner = min(loop(nbytes), max(1, int(LOOP_S / once.max())))
    if repeats is None:
        trial = _rounds(comm, contenders, source, inner, 1)
        repeats = min(MOST, max(FEWEST, int(BUDGET_S / (inner * trial.sum()))))
    return _rounds(comm, contenders, source, inner, repeats)


def loop(nbytes: int) -> int:
    """How many calls are timed together unless they take long: 100 of the smallest, 1 from FRESH_BYTES on."""
    return 1 if nbytes >= FRESH_BYTES else min(100, FRESH_BYTES // max(1, nbytes))


def _rounds(
    comm: MPI.Intracomm, contenders: Sequence[Contender], source: NDArray[Any], inner: int, repeats: int
) -> NDArray[np.float64]:
    seconds = np.zeros((len(contenders), repeats))
    shuffle = np.random.default_rng(0)  # the same on all ranks: nobody is always behind the same neighbour
    calls = range(inner)
    for turn in range(repeats):
        for i in shuffle.permutation(len(contenders)).tolist():
            contender = contenders[i]
            call = contender.call
            contender.fill(source)
            comm.Barrier()
            start = perf_counter()
            for _ in calls:
                call()
            seconds[i, turn] = (perf_counter() - start) / inner
    comm.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
    return seconds


def mpi_name() -> str:
    """Vendor and version of the MPI."""
    vendor, version = MPI.get_vendor()
    return f"{vendor} {'.'.join(map(str, version))}"
