"""What each rank of `psgd bench allreduce` and its like does: verify every contender, then time all in turns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.kernels.errors import AgreedError
from psgd.launch.bench.collective.contenders import Contender, build
from psgd.launch.bench.collective.table import GLOO, MPI_BEST, Row
from psgd.launch.bench.peers.gloo import Gloo
from psgd.launch.bench.problem import BenchOptions, Problem

FRESH_BYTES = 64 * 1024  # from here on one call is timed at a time, on values just written
BUDGET_S, GLOO_S = 1.2, 0.3
WARM_S = 0.3  # before Gloo's calls count: at first the system's scheduler makes many of them ten times slower
LOOP_S = 0.02
LONG_S = 1e-4  # the clock sees one such call well, and Gloo is slower in a row of them where its threads share cores
FEWEST, MOST, MOST_LONG = 5, 200, 1000
Rounds = Callable[[int, int], NDArray[np.float64]]  # from calls in a round and rounds to (contenders, rounds)


class WrongResultError(AgreedError):
    """A contender's result is not what it must be."""


def measure(
    comm: MPI.Intracomm,
    options: BenchOptions,
    sizes: Sequence[int],
    ours: Any,
    gloo: Gloo | None,
    best: Mapping[int, tuple[str, float]] | None = None,
) -> Iterator[Row]:
    """Verifies and times each size in turn; collective, so all ranks must take every row.

    Gloo, which has processes of its own, is timed half before and half after the others of a size.

    Args:
        comm: all ranks.
        options: what is measured.
        sizes: bytes of the whole vector.
        ours: a psgd.collectives.Communicator on `comm`.
        gloo: Gloo for these ranks, or None.
        best: by size, MPI's best setting and its seconds, where they were measured.

    Yields:
        One row for each size, the same on all ranks.

    Raises:
        WrongResultError: some contender errs, on all ranks.
        UsageError: psgd does not have the algorithm for this, on all ranks.
    """
    for nbytes in sizes:
        problem = Problem(options, nbytes, comm.rank, comm.size)
        source = problem.source()
        outside = None if gloo is None else _prepared(gloo, problem, options)
        before = outside and timed(outside, problem.nbytes, options.repeats, GLOO_S, WARM_S)
        contenders = build(problem, options, comm, ours)
        able, used = verify(comm, problem, contenders, source, ours)
        seconds = timed(rounds_of(comm, able, source), problem.nbytes, options.repeats)
        medians = np.median(seconds, axis=1)
        times = {contender.name: float(value) for contender, value in zip(able, medians, strict=True)}
        if outside is not None:
            after = timed(outside, problem.nbytes, options.repeats, GLOO_S, WARM_S)
            times[GLOO] = float(np.median(np.concatenate([before, after], axis=1)))
        setting = ""
        if best and problem.nbytes in best:
            setting, times[MPI_BEST] = best[problem.nbytes]
        yield Row(problem.nbytes, comm.size, seconds.shape[1], mpi_name(), times, used, setting)
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
    rounds: Rounds, nbytes: int, repeats: int | None, budget_s: float = BUDGET_S, warm_s: float = 0.0
) -> NDArray[np.float64]:
    """Seconds of one call of each contender in each round, of the slowest rank. Collective.

    In each round all have their turn, in an order that changes. Each rewrites its values before, untimed. Under
    FRESH_BYTES several calls are timed together, and divided.

    Args:
        rounds: times so many calls together, so many times: float64 (contenders, rounds).
        nbytes: of a call.
        repeats: rounds; None fills the budget.
        budget_s: seconds for all contenders.
        warm_s: seconds of calls that do not count, where one takes LONG_S; such calls are then timed one by one.

    Returns:
        float64 (contenders, rounds).
    """
    rounds(1, 1)
    once = rounds(1, 1)
    inner, most = min(loop(nbytes), max(1, int(LOOP_S / once.max()))), MOST
    if warm_s and once.min() > LONG_S:
        inner, most = 1, MOST_LONG
        rounds(1, max(1, int(warm_s / once.sum())))
    if repeats is None:
        trial = rounds(inner, 1)
        repeats = min(most, max(FEWEST, int(budget_s / (inner * trial.sum()))))
    return rounds(inner, repeats)


def _prepared(gloo: Gloo, problem: Problem, options: BenchOptions) -> Rounds | None:
    """Gloo's rounds of a problem, verified; None where it cannot do it. Collective.

    Raises:
        WrongResultError: on all ranks.
    """
    wrong = gloo.prepare(options, problem.nbytes)
    if wrong:
        raise WrongResultError(
            f"bench {problem.collective}: {GLOO}, {problem.nbytes} bytes of {problem.dtype}: wrong result on {wrong}"
        )
    return None if wrong is None else gloo.rounds


def loop(nbytes: int) -> int:
    """How many calls are timed together unless they take long: 100 of the smallest, 1 from FRESH_BYTES on."""
    return 1 if nbytes >= FRESH_BYTES else min(100, FRESH_BYTES // max(1, nbytes))


def rounds_of(comm: MPI.Intracomm, contenders: Sequence[Contender], source: NDArray[Any]) -> Rounds:
    """What times contenders on MPI's ranks, to be called with the calls of a round and the rounds. Collective."""

    def rounds(inner: int, repeats: int) -> NDArray[np.float64]:
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

    return rounds


def mpi_name() -> str:
    """Vendor and version of the MPI."""
    vendor, version = MPI.get_vendor()
    return f"{vendor} {'.'.join(map(str, version))}"
