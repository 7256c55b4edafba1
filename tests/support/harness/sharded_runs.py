"""Whole runs of small models with and without sharding, with delays, for comparison bit by bit."""

import random
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

import psgd
from psgd.collectives import Communicator
from psgd.nn.layers.dropout import Dropout
from psgd.nn.linear import Linear
from psgd.nn.model import Model
from psgd.nn.models import build
from psgd.optim import rules
from psgd.optim.optimizer import Optimizer, OptimizerOptions
from psgd.optim.schedules import constant
from psgd.parallel.sharded import by_unit, units
from psgd.parallel.sharded.exchange import Exchange
from psgd.parallel.sharded.slices import Slices

BATCH = 6


def mlp(width: int = 7) -> Model:
    """Layers of odd sizes, some without parameters."""
    return Model([Linear(width, relu=True), Dropout(0.3), Linear(15), Linear(17, relu=True), Linear(5)], (width,))


def tied() -> Model:
    """Text, whose first and last layer share a weight."""
    return build("gpt", (8,), 13, tokens=True, layers=2, width=12, heads=2)


@dataclass
class Ran:
    """What a run ended with: losses of this rank's steps, all final parameters, the connection's counts, bytes kept."""

    losses: list[float]
    params: Any
    nbytes: list[int]
    slices: Slices | None
    exchange: Exchange | None
    held: int


def batch(model: Model, rank: int, step: int) -> tuple[Any, Any]:
    """Samples of a step, each rank's own; some steps are without for some ranks, some have few."""
    rng = np.random.default_rng([rank, step])
    n = (0, 2, 3, 4, 6, 6, 4)[(rank + step) % 7]
    tokens = model.output_shape[:-1]
    if tokens:
        x = rng.integers(0, model.classes, (n, *model.input_shape)).astype(np.float32)
    else:
        x = rng.standard_normal((n, *model.input_shape)).astype(np.float32)
    return x, rng.integers(0, model.classes, (n, *tokens))


def run(
    comm: MPI.Intracomm,
    model: Model,
    stage: int,
    steps: int = 50,
    delays: bool = True,
    uneven: int = 0,
    first: int = 0,
    **options: Any,
) -> Ran:
    """Trains with Adam, without sharding where stage is 0. Collective.

    Args:
        comm: all ranks, each a worker.
        model: on no vector yet.
        stage: 0 to 3.
        steps: of worker 0.
        delays: each rank waits now and then, at random.
        uneven: so many steps more for each rank than for the one before.
        first: step at which it begins, where it does not resume from its own.
        **options: of `psgd.connect`.
    """
    options = {"rule": "adam", "lr": 0.01} | options
    several = options.get("accumulate", 1)
    chance = random.Random(comm.rank * 7 + stage)
    exchange, wrapped = None, Communicator(comm)
    if stage > 1:
        slices = Slices(units.of_stage(model), comm.size, comm.rank)
        params = by_unit.first_own(model, slices, 3) if stage == 3 else model.init(3)
        shared = by_unit.shared_units(model, slices.units)
        exchange = Exchange(wrapped, slices, params, stage, several, shared)
        made = by_unit.by_unit(model, exchange)
    else:
        params, made = model.init(3), model
    context = made.context(BATCH)
    losses, nbytes = [], []
    with psgd.connect(comm, params, strategy="allreduce", shard=exchange or stage, **options) as ps:
        client: Any = ps._client
        if exchange is None:
            made.bind(ps.params, ps.grads)
        for step in range(ps.clock or first, steps + uneven * comm.rank):
            x, y = batch(made, comm.rank, step)
            context.draw(step, np.arange(len(x)) + 100 * comm.rank)
            if delays and chance.random() < 0.1:
                time.sleep(chance.random() * 0.004)
            loss = 0.0
            if len(x):
                loss = made.gradient(context, x, y, ps.overlap(len(x)))
            losses.append(loss)
            ps.step(len(x), loss)
            nbytes.append(getattr(client, "nbytes", 0))
        optimizer = client._shard.optimizer if comm.size == 1 and not stage else client._optimizer
        kept = [client.params, client.grads, *optimizer.state]
        held = sum(each.nbytes for each in kept)
    if exchange is not None:
        exchange.free()
    whole = params
    if stage == 3:
        assert exchange is not None
        whole = np.empty(exchange.slices.whole, params.dtype)
        for unit, part in enumerate(exchange.slices.units):
            mine = params[exchange.slices.place(unit)]
            comm.Allgatherv(mine, [whole[part.start : part.stop], list(exchange.slices.counts(unit))])
    wrapped.free()
    return Ran(losses, whole, nbytes, getattr(client, "slices", None), exchange, held)


def step_by_step(
    comm: MPI.Intracomm, model: Model, steps: int, accumulate: int, uneven: int = 0, clip_norm: float = 0.0
) -> Any:
    """The final parameters of one process that has all ranks' samples, and adds each step's gradients by themselves."""
    options = OptimizerOptions(rules.create("adam", 0.9, 0.0), constant(0.01), clip_norm)
    params, grads = model.init(3), np.zeros(model.layout.size, model.dtype)
    optimizer, context = Optimizer(params, options), model.context(BATCH)
    model.bind(params, grads)
    applied = 0
    for first in range(0, steps + uneven * (comm.size - 1), accumulate):
        total, samples = np.zeros_like(params), 0
        for step in range(first, first + accumulate):
            of_step = np.zeros_like(params)
            for rank in range(comm.size):
                x, y = batch(model, rank, step)
                if not len(x) or step >= steps + uneven * rank:
                    continue
                context.draw(step, np.arange(len(x)) + 100 * rank)
                model.gradient(context, x, y)
                of_step += np.float32(len(x)) * grads
                samples += len(x)
            total += of_step
        optimizer.take(total, 1 / samples, applied)
        applied += samples
    return params
