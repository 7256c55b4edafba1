"""What each of two ranks does in the tests of estimates on GPUs: trains, and compares the pool's peak with them.

`mpirun -n 2 python gpu_memory_ranks.py`; prints a row of each combination.
"""

import gc
import sys
from typing import Any

import cupy
import numpy as np
from mpi4py import MPI

import psgd
from psgd.collectives import Communicator
from psgd.collectives.device.pick_gpu import choose_device
from psgd.config import configure
from psgd.estimate import whole_run
from psgd.estimate.rank_memory import EVALUATION, SLOTS, WORKSPACE
from psgd.kernels.layers.matmul import matmul
from psgd.launch.bench.pool_peak import PoolPeak
from psgd.nn import models
from psgd.parallel.sharded import by_unit, units
from psgd.parallel.sharded.exchange import Exchange
from psgd.parallel.sharded.slices import Slices

MOST_OFF = 0.05
GPT = {"model": "gpt", "batch": 4, "shape": (256,), "layers": 4, "width": 512, "heads": 8}
MLP = {"model": "mlp", "batch": 32, "shape": (1, 28, 28), "hidden": 4096}
CNN = {"model": "cnn", "batch": 32, "shape": (1, 28, 28), "hidden": 2048}
CASES: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    (GPT, {"shard": 3, "recompute": "all", "optimizer": "adam", "accumulate": 2}),
    (GPT, {"shard": 2, "optimizer": "momentum"}),
    (GPT, {"shard": 1, "recompute": "2", "optimizer": "adam"}),
    (GPT, {"optimizer": "adam", "accumulate": 2}),
    (MLP, {"shard": 3, "optimizer": "adam"}),
    (MLP, {"optimizer": "sgd", "clip_norm": 1.0}),
    (MLP, {"strategy": "averaging", "optimizer": "momentum"}),
    (CNN, {"shard": 3, "recompute": "all", "optimizer": "adam"}),
    (CNN, {"optimizer": "adam"}),
)


def compared(comm, own, options):
    """Bytes estimated, and those of the pool at their most, of a rank."""
    own = dict(own)
    name, shape, batch = (own.pop(each) for each in ("model", "shape", "batch"))
    config = configure(**{"model": name, "strategy": "allreduce", "batch_size": batch, "device": "cuda", **options})
    whole = models.build(name, shape, 997, tokens=name == "gpt", **own)
    told = whole_run.of_model(config, whole, 0, comm.size, timed=False)
    estimate = next(each for each in told.ranks if each.role == "worker")
    # The products' workspace is made once in a process: before.
    expected = sum(each for row, each in estimate.rows.items() if row not in (EVALUATION, SLOTS, WORKSPACE))
    model = whole_run.activations.recomputed(whole, config.recompute, config.batch_size, "cuda")
    return expected, _trained(comm, config, model)


def _trained(comm, config, model):
    """The pool's peak in three steps."""
    gc.collect()
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    before, peak = pool.used_bytes(), PoolPeak()
    steps, shard = config.own.get("accumulate", 1), config.shard or 0
    rule = {"rule": config.optimizer, "lr": 1e-3, "strategy": config.strategy, **config.own}
    rule["clip_norm"] = config.clip_norm
    wrapped = exchange = None
    if shard > 1:
        slices = Slices(units.of_stage(model), comm.size, comm.rank)
        params = cupy.asarray(by_unit.first_own(model, slices, 1) if shard == 3 else model.init(1))
        wrapped = Communicator(comm)
        shared = by_unit.shared_units(model, slices.units)
        exchange = Exchange(wrapped, slices, params, shard, steps, shared)
        model = by_unit.by_unit(model, exchange, graphs=True)
    else:
        params = cupy.asarray(model.init(1))
    more = {"shard": exchange or shard} if shard else {}
    n = config.batch_size
    x = cupy.ones((n, *model.input_shape), model.dtype)
    y = cupy.zeros((n, *model.output_shape[:-1]), np.int64)
    with psgd.connect(comm, params, **rule, **more) as ps:
        if exchange is None:
            model.bind(ps.params, ps.grads)
        context = model.context(n)
        for _ in range(3 * steps):
            ready = ps.overlap(n)
            loss = model.gradient(context, x, y, by_unit.on_ready(exchange) if exchange else ready)
            ps.step(n, loss)
    if exchange is not None:
        exchange.free()
        wrapped.free()
    return peak.close() - before


def main():
    comm, wrong = MPI.COMM_WORLD, 0
    choose_device(comm)
    one = cupy.ones((1, 1), np.float32)
    matmul(one, one, cupy.empty_like(one))
    for own, options in CASES:
        expected, found = compared(comm, own, options)
        off = comm.allreduce(abs(found / expected - 1), MPI.MAX)
        wrong += off > MOST_OFF
        if comm.rank == 0:
            said = " ".join(f"{name}={value}" for name, value in options.items())
            print(f"{own['model']} {said}: {expected:,} {found:,} {found / expected:.3f}", flush=True)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
