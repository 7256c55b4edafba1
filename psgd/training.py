"""One rank's part of `psgd train`: data, model, connection, loop, result."""

import time
from functools import partial
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from psgd.backend.host import HostBackend
from psgd.backend.interface import Backend
from psgd.checkpoint import final_weights
from psgd.checkpoint.requests import CheckpointRequest
from psgd.checkpoint.resume import say
from psgd.config import TrainConfig
from psgd.connection import Connection
from psgd.connector import connect
from psgd.data import Dataset, load
from psgd.data.normalization import Statistics, validate
from psgd.data.sampler import Sampler
from psgd.kernels.array import Array
from psgd.kernels.errors import AgreedUsageError, UsageError
from psgd.metrics.event_log import EventLog
from psgd.metrics.run_metrics import Event, RunMetrics
from psgd.metrics.wait_log import WaitLog
from psgd.nn import models
from psgd.nn.model import Model
from psgd.optim import rules, schedules
from psgd.optim.schedules import Schedule
from psgd.runtime import placement
from psgd.runtime.agreement import broadcast
from psgd.runtime.faults import Injector
from psgd.runtime.jsonable import clean
from psgd.strategies import catalog as strategies

_SAME = ("dataset", "model", "hidden", "batch_size", "seed")
"""Options that a run shares with one that goes on from its checkpoint, beside those that `psgd.connect` compares."""


class ProgressDisplay(Protocol):
    """What shows a run's progress."""

    def start(self, total_samples: int, epochs: int, done: int = 0) -> None:
        """The run begins."""

    def update(self, samples: int, epoch: int, loss: float, accuracy: float | None = None) -> None:
        """The run has come so far; `accuracy` only where it is new."""

    def close(self) -> None:
        """The run has ended."""


def run(
    config: TrainConfig,
    comm: MPI.Intracomm,
    on_progress: ProgressDisplay | None = None,
    wish: CheckpointRequest | None = None,
) -> dict[str, Any] | None:
    """Trains. Collective over `comm`; blocks until all are done.

    Args:
        config: the same on all ranks.
        comm: all ranks of the run.
        on_progress: told on rank 0.
        wish: asks for checkpoints from outside.

    Returns:
        On rank 0 the keys of `psgd train --json`; None elsewhere.

    Raises:
        AgreedUsageError: wrong options or data, on all ranks alike.
        UsageError: data that this rank alone cannot read.
    """
    servers = config.servers
    if servers is None:
        servers = strategies.default_servers(config.strategy, comm.Get_size())
    workers = comm.Get_size() - servers
    serving = placement.agree(comm, servers, config.placement)
    serves = comm.Get_rank() in serving
    if "cuda" in (config.device, config.server_device):
        from psgd.backend import places

        places.choose(comm, (config.server_device if serves else config.device) == "cuda")
    dataset, statistics, facts = _open(config, comm, needs_data=not serves)
    samples = facts["samples"]
    model = models.build(config.model, tuple(facts["shape"]), facts["classes"], hidden=config.hidden)
    with EventLog(config.log if comm.Get_rank() == 0 else None, append=config.resume) as journal:
        journal.write("start", **config.flat() | {"workers": workers, "servers": servers, "samples": samples})
        metrics = RunMetrics(
            workers,
            _teller(journal, on_progress),
            samples_per_epoch=samples,
            target_accuracy=config.target_accuracy,
            waits=None if config.log is None else WaitLog(),
        )
        params = np.empty(model.layout.size, np.float32) if serves else _first_params(config, model)
        place = placement.index(comm.Get_rank(), serving)
        injector = Injector(config.inject, place, workers, servers, serves)
        if serves:
            injector.watch(metrics, params)
        trainer = None if serves else _Trainer(config, dataset, statistics, model, params, injector)
        connection = connect(
            comm,
            params,
            strategy=config.strategy,
            servers=servers,
            placement=serving or "auto",
            lr=schedule(config, samples, workers),
            rule=_rule(config, serves),
            clip_norm=config.clip_norm,
            reduction=config.reduction,
            staleness_lr=config.staleness_lr,
            compress=config.compress,
            density=config.density,
            compress_warmup=config.compress_warmup * samples,
            compress_sync=config.compress_sync,
            record=config.record,
            replay=config.replay,
            metrics=metrics,
            checkpoint_dir=config.checkpoint_dir,
            checkpoint_every=config.checkpoint_every,
            checkpoint_minutes=config.checkpoint_minutes,
            checkpoint_keep=config.checkpoint_keep,
            resume=config.resume,
            run={name: clean(getattr(config, name)) for name in _SAME},
            layout=model.layout,
            wish=wish,
            **_strategy_options(config, samples),
        )
        if comm.Get_rank() == 0:
            found, total = connection.resumed_from, samples * config.epochs
            done = 0 if found is None else found.manifest.samples
            if on_progress is not None:
                on_progress.start(total, config.epochs, done)
            if done >= total:
                say(f"nothing left to do: the checkpoint is at epoch {done // samples} of {config.epochs}")
        # Overflow is told as a loss that is not finite, not as a warning from the depths of each rank.
        with np.errstate(over="ignore", invalid="ignore"):
            with connection as ps:
                if trainer is not None and not ps.is_server:
                    trainer.train(ps)
            if trainer is not None:
                trainer.computer.bind(params, np.zeros_like(params))  # the final ones, wherever training has computed
                trainer.computer.wait()
            seconds = metrics.elapsed_s()
            result = _result(config, comm, connection, metrics, seconds, trainer, facts["test_samples"])
        if result is not None:
            _write_waits(journal, metrics)
            journal.write("end", **result)
        if config.save is not None and not broadcast(comm, {"leaving": connection.leaving})["leaving"]:
            first = next(rank for rank in range(comm.Get_size()) if rank not in serving)
            final_weights.save(config.save, comm, first, params, model.layout)
        return result


def _first_params(config: TrainConfig, model: Model) -> Array:
    """Where a worker starts, on its device."""
    params = model.init(config.seed)
    if config.device == "cpu":
        return params
    import cupy

    return cupy.asarray(params)


def _rule(config: TrainConfig, serves: bool) -> rules.Rule:
    rule = rules.create(config.optimizer, config.momentum, config.weight_decay)
    if not serves or config.server_device == "cpu":
        return rule
    from psgd.backend import rules_on_gpu

    return rules_on_gpu.on_device(rule)


def _computer(config: TrainConfig, model: Model, dataset: Dataset, statistics: Statistics) -> Backend:
    if config.device == "cpu":
        return HostBackend(model, dataset, statistics, config.batch_size)
    from psgd.backend.cuda import CudaBackend

    keep = None if config.data_device == "auto" else config.data_device == "cuda"
    return CudaBackend(model, dataset, statistics, config.batch_size, keep)


def schedule(config: TrainConfig, samples: int, workers: int) -> Schedule:
    """The rate by samples applied, as the options say; `samples` is the training set's size."""
    lr = schedules.linear_scaling(config.lr, workers) if config.scale_lr else config.lr
    if config.schedule == "step":
        chosen = schedules.step(lr, config.step_epochs * samples, config.step_factor)
    elif config.schedule == "cosine":
        chosen = schedules.cosine(lr, config.epochs * samples)
    else:
        chosen = schedules.constant(lr)
    return schedules.warmup(chosen, config.warmup_epochs * samples)


def _strategy_options(config: TrainConfig, samples: int) -> dict[str, Any]:
    """The strategy's own options that were given; epochs become samples."""
    return {name: value * samples if name == "local_from" else value for name, value in config.own.items()}


def _open(
    config: TrainConfig, comm: MPI.Intracomm, needs_data: bool
) -> tuple[Dataset | None, Statistics, dict[str, Any]]:
    """Opens the data where it is needed; rank 0 alone reads all values, checks them and tells the others."""
    dataset = None
    facts: dict[str, Any] = {}
    if comm.Get_rank() == 0:
        try:
            dataset = load(config.dataset)
            statistics = validate(dataset)
            facts = {
                "samples": dataset.train.samples,
                "test_samples": dataset.test.samples,
                "shape": list(dataset.sample_shape),
                "classes": dataset.classes,
                "mean": statistics.mean,
                "std": statistics.std,
            }
            models.build(config.model, dataset.sample_shape, dataset.classes, hidden=config.hidden)
        except UsageError as error:
            facts = {"error": str(error)}
    facts = broadcast(comm, facts)
    if "error" in facts:
        raise AgreedUsageError(facts["error"])
    if needs_data and dataset is None:
        dataset = load(config.dataset)
    return dataset, Statistics(facts["mean"], facts["std"]), facts


class _Trainer:
    """A worker's loop over its part of the data."""

    def __init__(
        self,
        config: TrainConfig,
        dataset: Dataset | None,
        statistics: Statistics,
        model: Model,
        params: Array,
        injector: Injector,
    ) -> None:
        assert dataset is not None
        self._injector = injector
        self._config = config
        self._dataset = dataset
        self.computer = _computer(config, model, dataset, statistics)
        self.computer.prepare(params)

    def train(self, ps: Connection) -> None:
        """All epochs; a worker that has run out of samples in an epoch pushes none and keeps pace."""
        config, computer, injector = self._config, self.computer, self._injector
        injects, poisons = bool(config.inject), "nan" in config.inject
        computer.bind(ps.params, ps.grads)
        sampler = Sampler(self._dataset.train.samples, ps.workers, ps.worker, config.batch_size, config.seed)
        done = self._done(ps, sampler)
        if done and ps.worker == 0 and self._due(done, sampler.steps):
            self._report(ps)  # it came after the checkpoint
        for epoch in range(done // sampler.steps, config.epochs):
            for step in range(max(0, done - epoch * sampler.steps), sampler.steps):
                indices = sampler.batch(epoch, step)
                loss, number = 0.0, epoch * sampler.steps + step
                injector.begin(number)
                if len(indices):
                    start = time.perf_counter()
                    touch = partial(injector.poison, number) if poisons else None
                    loss = computer.gradient(indices, ps.overlap(len(indices)), touch)
                    if injects:
                        computer.wait()
                        injector.sleep(number, time.perf_counter() - start)
                ps.step(len(indices), loss)
                if ps.stop:
                    return
                if ps.worker == 0 and self._due(epoch * sampler.steps + step + 1, sampler.steps):
                    self._report(ps)

    def _done(self, ps: Connection, sampler: Sampler) -> int:
        """This worker's steps before a checkpoint; with other workers as many as made its samples, rounded down."""
        found = ps.resumed_from
        if found is None or ps.clock:
            return ps.clock
        epochs, rest = divmod(found.manifest.samples, sampler.samples)
        return epochs * sampler.steps + rest // (self._config.batch_size * ps.workers)

    def _report(self, ps: Connection) -> None:
        """Evaluates what there is, on the whole test part."""
        computer = self.computer
        computer.bind(ps.evaluated_params, ps.grads)
        correct, loss_sum = computer.evaluate(0, 1)
        computer.bind(ps.params, ps.grads)
        count = max(1, self._dataset.test.samples)
        ps.report(correct / count, loss_sum / count)

    def _due(self, done: int, steps: int) -> bool:
        """Whether an evaluation is due after so many steps, of `steps` an epoch; the last one is made elsewhere."""
        every = self._config.eval_every * steps
        return bool(every) and done < self._config.epochs * steps and done // every > (done - 1) // every


def _teller(journal: EventLog, progress: ProgressDisplay | None) -> Any:
    """Passes what the metrics tell on to the log and the display."""

    def tell(metrics: RunMetrics, event: Event) -> None:
        seconds, fresh = metrics.elapsed_s(), event == "eval"
        if fresh:
            journal.write(
                "eval",
                time=seconds,
                samples=metrics.samples,
                epoch=metrics.epoch,
                accuracy=metrics.accuracy,
                loss=metrics.test_loss,
            )
        else:
            journal.write(
                "progress",
                time=seconds,
                samples=metrics.samples,
                epoch=metrics.epoch,
                loss=metrics.loss,
                lr=metrics.lr,
            )
        _write_waits(journal, metrics)
        if progress is not None:
            progress.update(metrics.samples, metrics.epoch, metrics.loss, metrics.accuracy if fresh else None)

    return tell


def _write_waits(journal: EventLog, metrics: RunMetrics) -> None:
    if metrics.waits is not None and (fields := metrics.waits.take()):
        journal.write("waits", **fields)


def _result(
    config: TrainConfig,
    comm: MPI.Intracomm,
    connection: Connection,
    metrics: RunMetrics,
    seconds: float,
    trainer: _Trainer | None,
    test_samples: int,
) -> dict[str, Any] | None:
    """Evaluates the final parameters, each worker on its part, and puts the result together on rank 0."""
    correct, loss_sum, sent, received = 0, 0.0, 0, 0
    if trainer is not None:
        correct, loss_sum = trainer.computer.evaluate(connection.mesh.index, connection.workers)
        sent, received = connection.bytes_sent, connection.bytes_received
    mine = np.array([correct, loss_sum, sent, received], np.float64)
    total = np.empty_like(mine)
    comm.Reduce(mine, total, MPI.SUM, root=0)
    if comm.Get_rank() != 0:
        return None
    metrics.evaluated(total[0].item() / max(1, test_samples), total[1].item() / max(1, test_samples), seconds)
    result: dict[str, Any] = clean(
        {
            "dataset": config.dataset,
            "model": config.model,
            "strategy": config.strategy,
            "workers": connection.workers,
            "servers": connection.servers,
            "device": config.device,
            "mpi": " ".join([MPI.get_vendor()[0], ".".join(map(str, MPI.get_vendor()[1]))]),
            "epochs": config.epochs,
            "batch_size": config.batch_size,
            "lr": config.lr,
            "seed": config.seed,
            "steps": metrics.steps,
            "samples": metrics.samples,
            "seconds": seconds,
            "samples_per_second": metrics.samples / seconds,
            "train_samples": metrics.samples_per_epoch,
            "test_samples": test_samples,
            "train_loss": metrics.loss,
            "test_accuracy": metrics.accuracy,
            "test_loss": metrics.test_loss,
            "bytes_sent": int(total[2]),
            "bytes_received": int(total[3]),
            "staleness": metrics.staleness_summary(),
            "seconds_to_target": metrics.seconds_to_target,
            "waited_seconds": metrics.waited_s,
            "computed_seconds": metrics.computed_s,
            "workers_applied": metrics.pushes,
            "workers_waited": metrics.waited,
            "workers_dropped": metrics.dropped,
            "lost_ranks": [],
            "checkpoint": connection.checkpoint,
            "requeue": connection.leaving,
        }
    )
    return result
