"""What each rank of `psgd bench gpt2` does: train sharded, measure memory and time, then hand over to PyTorch."""

import contextlib
import gc
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
from mpi4py import MPI

import psgd
from psgd.collectives import Communicator
from psgd.data import load
from psgd.data.sampler import order
from psgd.kernels.errors import AgreedUsageError, UsageError
from psgd.launch.bench.gpt2 import expected
from psgd.launch.bench.gpt2.trial import GPT2Trial, tell
from psgd.launch.bench.stats import median
from psgd.parallel.sharded import by_unit, units
from psgd.parallel.sharded.exchange import Exchange
from psgd.parallel.sharded.slices import Slices

SEED = 0
Tokens = Callable[[int, int], tuple[Any, Any]]


def measure(comm: MPI.Intracomm, trial: GPT2Trial, peak: float, peer: bool) -> dict[str, Any]:
    """Trains with psgd, and then with PyTorch's FSDP2 where that is wanted. Collective, blocks.

    Args:
        comm: all ranks.
        trial: the same on all.
        peak: TFLOP/s of a GPU.
        peer: whether PyTorch trains too.

    Returns:
        The trial, and for each contender losses, bytes, tokens a second and the share of the peak.

    Raises:
        AgreedUsageError: a model that cannot be; on all ranks.
    """
    if trial.device == "cuda":
        from psgd.collectives.device.pick_gpu import choose_device

        choose_device(comm)
    try:
        tokens = _tokens(comm, trial)
        found: dict[str, Any] = asdict(trial) | {"psgd": _ours(comm, trial, tokens, peak)}
    except UsageError as error:
        raise AgreedUsageError(str(error)) from None
    if comm.rank == 0:
        print(json.dumps(found["psgd"]), file=sys.stderr, flush=True)  # the peer may yet fail
    if peer:
        gc.collect()
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()
        from psgd.launch.bench.gpt2 import fsdp

        found["fsdp2"] = _rates(comm, trial, peak, fsdp.train(comm, trial, tokens, trial.lr))
    return found


def _tokens(comm: MPI.Intracomm, trial: GPT2Trial) -> Tokens:
    """Gives this rank's samples and labels of a pass, of the text's bytes."""
    data = load("genesis", trial.context)
    rows = order(data.train.samples, SEED, 0)

    def take(step: int, number: int) -> tuple[Any, Any]:
        start = step * trial.batch_size + (number * comm.size + comm.rank) * trial.microbatch
        chosen = rows.take(range(start, start + trial.microbatch), mode="wrap")
        return data.train.x[chosen], data.train.y[chosen].astype(np.int64)

    return take


def _ours(comm: MPI.Intracomm, trial: GPT2Trial, tokens: Tokens, peak: float) -> dict[str, Any]:
    whole = expected.model_of(trial)
    model = expected.recomputing(trial, whole)
    estimate = expected.of_trial(trial, model)
    began = time.perf_counter()
    slices = Slices(units.of_stage(model), comm.size, comm.rank)
    own: Any = by_unit.first_own(model, slices, SEED) if trial.shard == 3 else model.init(SEED)
    xp: Any = np
    peak_of_pool = None
    if trial.device == "cuda":
        import cupy

        from psgd.launch.bench.pool_peak import PoolPeak

        xp, peak_of_pool = cupy, PoolPeak()
        own = cupy.asarray(own)
    drawn_s = time.perf_counter() - began
    wrapped = Communicator(comm)
    shared = by_unit.shared_units(model, slices.units)
    exchange = Exchange(wrapped, slices, own, trial.shard, trial.passes, shared)
    sharded = by_unit.by_unit(model, exchange, graphs=True)
    context, ready = sharded.context(trial.microbatch), by_unit.on_ready(exchange)
    losses: list[float] = []
    seconds: list[float] = []
    options: dict[str, Any] = {"strategy": "allreduce", "rule": "adam", "lr": trial.lr, "accumulate": trial.passes}
    with psgd.connect(comm, own, shard=exchange, **options) as ps:
        for step in range(trial.steps):
            with _timed(comm, xp, seconds):
                loss = 0.0
                for number in range(trial.passes):
                    x, y = tokens(step, number)
                    ps.overlap(len(x))
                    mine = sharded.gradient(context, xp.asarray(x.astype(np.float32)), xp.asarray(y), ready)
                    ps.step(len(x), mine)
                    loss += float(mine) / trial.passes
            losses.append(comm.allreduce(loss) / comm.size)
            tell(comm.rank, "psgd", losses, seconds)
    exchange.free()
    wrapped.free()
    held = 0 if peak_of_pool is None else peak_of_pool.close()
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    more = {
        "drawn_s": drawn_s,
        "estimated_bytes": estimate.total,
        "bytes_by_estimate": dict(estimate.rows),
        "pool_bytes": 0 if trial.device == "cpu" else xp.get_default_memory_pool().total_bytes(),
        "most_resident_bytes": comm.allreduce(resident, MPI.MAX),
    }
    return _rates(comm, trial, peak, (losses, seconds, held)) | more


@contextlib.contextmanager
def _timed(comm: MPI.Intracomm, xp: Any, seconds: list[float]) -> Iterator[None]:
    comm.Barrier()
    began = time.perf_counter()
    yield
    if xp is not np:
        xp.cuda.get_current_stream().synchronize()
    seconds.append(time.perf_counter() - began)


def _rates(
    comm: MPI.Intracomm, trial: GPT2Trial, peak: float, ran: tuple[list[float], list[float], int]
) -> dict[str, Any]:
    """What a contender has shown: the slowest rank's median step, without the first."""
    losses, seconds, held = ran
    each = comm.allreduce(median(seconds[1:]), MPI.MAX)
    return {
        "losses": losses,
        "step_s": each,
        "tokens_per_second": trial.batch_size * trial.context / each,
        "share_of_peak": trial.flops / each / (comm.size * peak * 1e12),
        "most_bytes": comm.allreduce(held, MPI.MAX),
    }
