"""What each of two ranks does in the tests of sharded models on GPUs: bits beside those of a rank that has it all.

`mpirun -n 2 python sharded_gpu_ranks.py`; ranks may share a GPU.
"""

import sys

import cupy
import numpy as np
from mpi4py import MPI

import psgd
from psgd.collectives import Communicator
from psgd.collectives.device.pick_gpu import choose_device
from psgd.estimate import activations
from psgd.nn import models
from psgd.parallel.sharded import by_unit, units
from psgd.parallel.sharded.exchange import Exchange
from psgd.parallel.sharded.slices import Slices

TOKENS, VOCABULARY, STEPS = 48, 211, 6
EACH = 4  # a power of two: to weigh by it does not round, in whatever order
RULE = {"rule": "adam", "lr": 1e-3}


def model():
    """Layers of several sizes that no number of ranks divides, with a table that has two uses."""
    made = models.build("gpt", (TOKENS,), VOCABULARY, tokens=True, layers=3, width=60, heads=5)
    return activations.recomputed(made, "all", EACH)


def batches(step):
    """Samples and labels of both ranks in a step, on the GPU."""
    rng = np.random.default_rng(step)
    tokens = rng.integers(0, VOCABULARY, (2, EACH, TOKENS + 1))
    return [(cupy.asarray(t[:, :-1].astype(np.float32)), cupy.asarray(t[:, 1:])) for t in tokens]


def alone():
    """Losses and weights of one rank whose updates have the gradients of both, in rank order."""
    stage, losses = model(), []
    params = cupy.asarray(stage.init(1))
    with psgd.connect(MPI.COMM_SELF, params, **RULE, accumulate=2) as ps:
        stage.bind(ps.params, ps.grads)
        context = stage.context(EACH)
        for step in range(STEPS):
            for x, y in batches(step):
                ps.overlap(EACH)
                losses.append(stage.gradient(context, x, y))
                ps.step(EACH, losses[-1])
        return [float(each) for each in losses], ps.params.get()


def sharded(comm, shard):
    """The same on all ranks: losses of this one, and its own slices, or all weights of stages 1 and 2."""
    stage, losses = model(), []
    slices = Slices(units.of_stage(stage), comm.size, comm.rank)
    first = by_unit.first_own(stage, slices, 1) if shard == 3 else stage.init(1)
    params = cupy.asarray(first)
    wrapped = exchange = None
    if shard > 1:
        wrapped = Communicator(comm)
        exchange = Exchange(wrapped, slices, params, shard, 1, by_unit.shared_units(stage, slices.units))
        stage = by_unit.by_unit(stage, exchange, graphs=True)
        assert (type(exchange.gathers).__name__ == "PeerGathers") == (shard == 3)
    with psgd.connect(comm, params, **RULE, strategy="allreduce", shard=exchange or shard) as ps:
        if exchange is None:
            stage.bind(ps.params, ps.grads)
        context = stage.context(EACH)
        pool = cupy.get_default_memory_pool()
        for step in range(STEPS):
            x, y = batches(step)[comm.rank]
            before = pool.used_bytes()
            ready = ps.overlap(EACH)
            losses.append(stage.gradient(context, x, y, by_unit.on_ready(exchange) if exchange else ready))
            ps.step(EACH, losses[-1])
            assert step < 2 or pool.used_bytes() <= before + 4096, "a step has left memory behind"
        found = ps.params.get()
    if exchange is not None:
        exchange.free()
        wrapped.free()
    return [float(each) for each in losses], found, slices


def main():
    psgd.abort_on_exception()
    comm = MPI.COMM_WORLD
    choose_device(comm)
    expected_losses, expected = alone()
    for shard in (0, 1, 2, 3):
        losses, found, slices = sharded(comm, shard)
        assert losses == expected_losses[comm.rank :: 2], (shard, losses, expected_losses)
        mine = np.concatenate([expected[part.start : part.stop] for part in slices.own]) if shard == 3 else expected
        np.testing.assert_array_equal(found, mine, f"shard {shard}")
        if comm.rank == 0:
            print(f"shard {shard}: equal", flush=True)
    assert len(expected_losses) == 2 * STEPS and expected_losses[-1] < expected_losses[0]


if __name__ == "__main__":
    sys.exit(main())
