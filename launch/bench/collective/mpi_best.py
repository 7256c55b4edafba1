"""MPI at its best: the same call in jobs of MPI alone, one for each of its settings, and the fastest for each size.

An MPI reads its settings when it starts, so each has a job of its own, which `psgd bench` starts before its ranks.
Run as a module it is one of a job's ranks, with a question in JSON as its argument.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from psgd.launch import cores, mpiexec, spawn
from psgd.launch.bench.collective.mpi_settings import Setting, settings
from psgd.launch.bench.peers import processes
from psgd.launch.bench.problem import BenchOptions

VARIABLE = "PSGD_BENCH_MPI_BEST"  # tells the ranks what was found
BUDGET_S = 0.12  # for a size and setting
_TIMEOUT_S = 60.0  # of a job: a setting that takes so long is not the best
Best = dict[int, tuple[str, float]]


def search(options: BenchOptions, sizes: Sequence[int], ranks: int, mpiexec_args: str) -> tuple[Best, list[str]]:
    """Measures all settings on this host, where no ranks may run meanwhile. Blocks.

    Args:
        options: the call.
        sizes: bytes, whole elements.
        ranks: how many.
        mpiexec_args: as for the benchmark's own ranks.

    Returns:
        By size the fastest setting and its seconds; and one line for each setting that failed.
    """
    found = mpiexec.library()
    best: Best = {}
    failed = []
    for setting in settings(found.vendor, options.collective):
        try:
            seconds = measure(options, sizes, ranks, mpiexec_args, setting)
        except (RuntimeError, ValueError, IndexError) as error:
            failed.append(f"MPI's setting {setting.name} failed: {' '.join(str(error).split())[-200:]}")
            continue
        for nbytes, value in seconds.items():
            if nbytes not in best or value < best[nbytes][1]:
                best[nbytes] = setting.name, value
    return best, failed


def measure(
    options: BenchOptions, sizes: Sequence[int], ranks: int, mpiexec_args: str, setting: Setting
) -> dict[int, float]:
    """Seconds by size of MPI's own call, in a job of MPI alone with that setting. Blocks.

    Raises:
        RuntimeError: the job failed.
    """
    words = mpiexec_words(ranks, mpiexec_args)
    question = json.dumps({"options": asdict(options), "sizes": list(sizes)})
    words += processes.python("psgd.launch.bench.collective.mpi_best", question)
    text = processes.output(words, _TIMEOUT_S, setting.variables)
    return {int(nbytes): float(value) for nbytes, value in json.loads(text.strip().splitlines()[-1]).items()}


def mpiexec_words(ranks: int, mpiexec_args: str) -> list[str]:
    """The command that starts a job of this MPI on this host, whose ranks bind themselves."""
    found = mpiexec.library()
    return mpiexec.command(
        found.vendor,
        mpiexec.find(found),
        ranks,
        len(cores.usable()),
        os.geteuid() == 0,
        extra=spawn.split(mpiexec_args),
        slurm="SLURM_JOB_ID" in os.environ,
    )


def heard() -> Best:
    """On a rank: what the launcher has found; nothing where it has not looked."""
    return {int(nbytes): (name, value) for nbytes, (name, value) in json.loads(os.environ.get(VARIABLE, "{}")).items()}


def _rank(options: dict[str, Any], sizes: list[int]) -> None:
    """One rank of a job: verifies and times each size; rank 0 prints."""
    import numpy as np
    from mpi4py import MPI

    from psgd.launch.bench.collective.contenders import Buffers, plain_mpi
    from psgd.launch.bench.collective.ranks import rounds_of, timed, verify
    from psgd.launch.bench.peers.cores import pin
    from psgd.launch.bench.problem import Problem
    from psgd.runtime.fail_together import guard

    comm, given, seconds = MPI.COMM_WORLD, BenchOptions(**options), {}
    with guard(comm):
        pin(comm)
        for nbytes in sizes:
            problem = Problem(given, nbytes, comm.rank, comm.size)
            source = problem.source()
            contenders = [plain_mpi(problem, given, comm, Buffers.make(problem, np.empty))]
            able, _ = verify(comm, problem, contenders, source, None)
            if able:
                times = timed(rounds_of(comm, able, source), problem.nbytes, given.repeats, BUDGET_S)
                seconds[problem.nbytes] = float(np.median(times))
    if comm.rank == 0:
        print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    _rank(**json.loads(sys.argv[1]))
