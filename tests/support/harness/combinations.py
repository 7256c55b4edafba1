"""Random combinations of model, strategy, mesh, sharding, recomputation, dtype and ranks: estimated, and then run.

`mpirun -n 4 python -m harness.combinations`, in tests/support, prints the table of all, and with numbers behind it that
of these. The seed is fixed.
"""

import gc
import random
import sys
import tracemalloc
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

import psgd
from harness.memory_count import Counter, freed_memory_leaves, resident
from psgd.collectives import Communicator
from psgd.config import TrainConfig, configure
from psgd.data.normalization import Statistics
from psgd.estimate import whole_run
from psgd.estimate.rank_memory import EVALUATION, SLOTS
from psgd.nn import models
from psgd.nn.evaluation import evaluated_at_once
from psgd.nn.model import Model
from psgd.parallel.mesh import ProcessMesh
from psgd.parallel.sharded import by_unit, units
from psgd.parallel.sharded.exchange import Exchange
from psgd.parallel.sharded.slices import Slices
from psgd.training import cut_model
from psgd.training.sharded import sharded_model
from psgd.training.task import Task
from psgd.training.trainable import OwnModel

SEED, NUMBER = 19, 30
SMALL = 3 << 19
"""Bytes of what an estimate leaves out, for any model: headers, counters, a segment of a vector (1 MiB of float64)."""
INTERPRETER = 4 << 20
"""Bytes of pages of each rank that are not of arrays: compiled code, and what is traced."""
MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"shape": (1, 28, 28), "hidden": (1024, 2048, 3000)},
    "cnn": {"shape": (1, 12, 12), "hidden": (256, 1024)},
    "resmlp": {"shape": (1, 28, 28), "hidden": (256, 512, 1024)},
    "gpt": {"shape": (48,), "width": (96, 192), "layers": (2, 3), "heads": (4,)},
}
_COMPILED: set[tuple[str, str, bool]] = set()
STRATEGIES = ("sync", "async", "ssp", "allreduce", "averaging", "easgd", "hogwild")
MESHES = ("pipe=2", "tensor=2", "pipe=2,tensor=2", "pipe=2,data=2", "tensor=2,data=2")


@dataclass(frozen=True)
class Case:
    """One combination."""

    number: int
    model: str
    own: dict[str, int]
    dtype: str
    ranks: int
    strategy: str
    shard: int | None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All of it in one line."""
        more = [f"{name}={value}" for name, value in (*self.own.items(), *self.options.items())]
        shard = f" shard={self.shard}" if self.shard else ""
        return f"{self.model} {self.dtype} {self.ranks} ranks {self.strategy}{shard} {' '.join(more)}"

    def config(self) -> TrainConfig:
        """The run's options."""
        return configure(model=self.model, strategy=self.strategy, shard=self.shard, **self.options)

    def build(self) -> Model:
        """The model, on no vector."""
        shape, tokens = MODELS[self.model]["shape"], self.model == "gpt"
        layers = models.build(self.model, shape, 61, tokens=tokens, **self.own)
        return Model(layers.layers, layers.input_shape, np.dtype(self.dtype))


def cases(number: int, seed: int = SEED) -> list[Case]:
    """The first so many of an endless list."""
    return [_case(index, random.Random(seed * 1000 + index)) for index in range(number)]


def _case(index: int, rng: random.Random) -> Case:
    model = rng.choice(list(MODELS))
    own = {name: rng.choice(values) for name, values in MODELS[model].items() if name != "shape"}
    options: dict[str, Any] = {
        "batch_size": rng.choice((8, 17, 32)),
        "optimizer": rng.choice(("sgd", "momentum", "adam")),
    }
    kind = rng.choice(("strategy", "shard", "shard", "mesh"))
    if recompute := rng.choice((None, None, "all", "2")):
        options["recompute"] = recompute
    ranks, strategy, shard = rng.choice((2, 3, 4)), rng.choice(STRATEGIES), None
    if kind == "strategy" and strategy in ("async", "allreduce") and rng.random() < 0.5:
        options["accumulate"] = 2
    if kind == "strategy" and strategy in ("sync", "async", "ssp") and rng.random() < 0.3:
        options["servers"] = 1
    if kind == "shard":
        strategy, shard = "allreduce", rng.choice((1, 2, 3))
        if rng.random() < 0.4:
            options["accumulate"] = 2
    if kind == "mesh":
        strategy, mesh = "allreduce", rng.choice(MESHES)
        ranks = int(np.prod([int(part.split("=")[1]) for part in mesh.split(",")]))
        options |= {"mesh": mesh, "workers": 2 if "data" in mesh else 1}
        if "pipe" in mesh:
            options |= {"cut": "2", "pipe_schedule": rng.choice(("1f1b", "gpipe"))}
    return Case(index, model, own, rng.choice(("float32", "float64")), ranks, strategy, shard, options)


@dataclass
class Measured:
    """Of a rank: bytes estimated and counted; of all workers together: resident pages, estimated and grown."""

    role: str
    estimated: int
    counted: int
    estimated_all: int
    grown_all: int


def run(world: MPI.Intracomm, case: Case) -> Measured | None:
    """Runs a case on the first ranks of a communicator; None on the others. Collective.

    The first run compiles; of the second NumPy's arrays and the resident pages are looked at.
    """
    comm = world.Split(0 if world.rank < case.ranks else MPI.UNDEFINED, world.rank)
    if comm == MPI.COMM_NULL:
        return None
    kind = case.model, case.dtype, "mesh" in case.options
    _train(comm, case, lambda: (0, 0), evaluates=kind not in _COMPILED)
    _COMPILED.add(kind)
    gc.collect()  # on all ranks, before any looks: they share memory
    comm.Barrier()
    before = resident()
    comm.Barrier()
    with Counter() as counter:
        estimated, slots, (after, counted) = _train(
            comm, case, lambda: (resident() - tracemalloc.get_tracemalloc_memory(), counter.read())
        )
    role, number = estimated
    worker = role != "server"
    found = Measured(
        role,
        number + slots,
        counted if worker else number + slots,
        comm.allreduce(number if worker else 0),
        comm.allreduce(after - before if worker else 0),
    )
    comm.Free()
    return found


def _train(comm: MPI.Intracomm, case: Case, read: Any, evaluates: bool = True) -> Any:
    """Two updates and an evaluation; returns the rank's role and estimate, its slots, and what `read` gave."""
    config, whole = case.config(), case.build()
    servers = config.servers if config.servers is not None else int(_serves(case))
    if "mesh" in case.options:
        return _in_pieces(comm, case, config, whole, read)
    workers = comm.size - servers
    told = whole_run.of_model(config, whole, servers, workers, timed=False)
    model = whole_run.activations.recomputed(whole, config.recompute, config.batch_size)
    at_once = evaluated_at_once(whole.tokens)
    rule: dict[str, Any] = {"rule": config.optimizer, "lr": 1e-3, "strategy": case.strategy, **config.own}
    exchange = ready = wrapped = None
    if (case.shard or 0) > 1:
        slices = Slices(units.of_stage(model), comm.size, comm.rank)
        params = by_unit.first_own(model, slices, 1) if case.shard == 3 else model.init(1)
        wrapped = Communicator(comm)
        shared = by_unit.shared_units(model, slices.units)
        exchange = Exchange(wrapped, slices, params, case.shard or 0, config.own.get("accumulate", 1), shared)
        trained, ready = by_unit.by_unit(model, exchange), by_unit.on_ready(exchange)
    else:
        params, trained = model.init(1), model
    more: dict[str, Any] = {"servers": servers} if servers or _serves(case) else {}
    if case.shard:
        more["shard"] = exchange or case.shard
    connection = psgd.connect(comm, params, **rule, **more)
    others = comm.Split(connection.is_server, comm.rank)  # a server is inside until the workers have left
    found, number = (0, 0), None
    with connection as ps:
        if ps.is_worker:
            if exchange is None:
                trained.bind(ps.params, ps.grads)
            n = config.batch_size
            context, far = trained.context(n), trained.context(at_once, trains=False)
            (x, y), test = _batch(model, n), _batch(model, at_once)
            for _ in range(2 * config.own.get("accumulate", 1)):
                told_ready = ps.overlap(n)
                loss = trained.gradient(context, x, y, ready or told_ready)
                ps.step(n, loss)
            if evaluates:
                trained.evaluate(far, *test)
            number = ps.worker
            others.Barrier()
            found = read()
            others.Barrier()
    role = "server" if connection.is_server else "worker"
    others.Free()
    if exchange is not None:
        exchange.free()
        wrapped.free()
    return *_of(told.ranks, role, number or 0), found


def _in_pieces(comm: MPI.Intracomm, case: Case, config: TrainConfig, whole: Model, read: Any) -> Any:
    told = whole_run.of_model(config, whole, 0, config.workers or 1)
    with ProcessMesh(comm, **config.axes) as mesh:
        task = Task(OwnModel(whole), 10**6, 10**6, Statistics(0.0, 1.0), None)
        model: Any = cut_model.cut(task, config, mesh).model
        params = model.vector(config, False)
        x, y = _batch(whole, config.batch_size)
        options: dict[str, Any] = {"rule": config.optimizer, "lr": 1e-3, **config.own}
        options |= {"layout": model.layout, "part": cut_model.part(model), "shard": sharded_model.choice(config, model)}
        with psgd.connect(mesh.data, params, strategy="allreduce", **options) as ps:
            model.pipeline.bind(ps.params, ps.grads)
            for _ in range(2 * (config.own.get("accumulate") or 1)):
                loss = model.pipeline.gradient(len(x), x, y, ps.overlap(len(x)))
                ps.step(len(x), loss)
            comm.Barrier()
            found = read()
            comm.Barrier()
        places = [f"{name}={mesh.coordinates[name]}" for name in ("pipe", "tensor") if mesh.sizes[name] > 1]
        cut_model.close(model)
    return *_of(told.ranks, f"worker {','.join(places)}", 0, {EVALUATION}), found


def _of(ranks: Any, role: str, worker: int, without: Any = ()) -> tuple[tuple[str, int], int]:
    """A rank's estimate without slots, and these."""
    mine = [each for each in ranks if each.role == role]
    each = mine[0] if worker == 0 else mine[-1]
    total = sum(number for name, number in each.rows.items() if name not in {SLOTS, *without})
    return (role, total), each.rows.get(SLOTS, 0)


def _serves(case: Case) -> bool:
    from psgd.strategies import catalog

    return bool(catalog.find(case.strategy).servers)


def _batch(model: Model, n: int) -> tuple[Any, Any]:
    """Samples and labels, as large as an estimate has them."""
    x = np.ones((n, *model.input_shape), model.dtype)  # pages of zeros take no memory until they are written
    return x, np.zeros((n, *model.output_shape[:-1]), np.int64)


def judged(comm: MPI.Intracomm, case: Case) -> tuple[str, bool] | None:
    """Runs a case; on rank 0 its line of the table, and whether all is as estimated. Collective."""
    with freed_memory_leaves():
        everyone = comm.gather(run(comm, case))
    if everyone is None:
        return None
    mine = [each for each in everyone if each is not None]
    arrays = max((each.counted - each.estimated for each in mine), key=abs)
    pages = mine[0].grown_all / mine[0].estimated_all
    most = max(each.estimated for each in mine)
    most_off = 0.05 * mine[0].estimated_all + INTERPRETER * len(mine)
    fine = abs(arrays) <= SMALL and abs(mine[0].grown_all - mine[0].estimated_all) <= most_off
    return f"| {case.number} | {case.text} | {most:,} | {arrays:+,} | {pages:.3f} |", fine


def main() -> None:
    """Prints the table, and exits with 1 where a case is not as estimated."""
    world, wrong = MPI.COMM_WORLD, 0
    every = cases(NUMBER)
    for case in [every[int(number)] for number in sys.argv[1:]] or every:
        if (found := judged(world, case)) is not None:
            line, fine = found
            wrong += not fine
            print(line if fine else f"{line} !", flush=True)
    sys.exit(bool(world.bcast(wrong)))


if __name__ == "__main__":
    main()
