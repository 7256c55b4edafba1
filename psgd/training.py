"""One rank's part of `psgd train`: data, model, connection, loop, result."""

import time
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from psgd import rules, schedules, strategies
from psgd.agreement import broadcast
from psgd.config import STRATEGY_OPTIONS, TrainConfig
from psgd.connection import Connection
from psgd.data import Dataset, load
from psgd.data.batches import Batches
from psgd.data.normalization import Statistics, validate
from psgd.data.sampler import Sampler
from psgd.joining import connect
from psgd.journal import Journal, clean
from psgd.kernels.errors import AgreedUsageError, UsageError
from psgd.metrics import Event, RunMetrics
from psgd.nn import models
from psgd.nn.model import Model
from psgd.schedules import Schedule
from psgd.stragglers import Stragglers
from psgd.waits import Waits

EVALUATION_BATCH = 500


class Progress(Protocol):
    """What shows a run's progress."""

    def start(self, total_samples: int, epochs: int) -> None:
        """The run begins."""

    def update(self, samples: int, epoch: int, loss: float, accuracy: float | None = None) -> None:
        """The run has come so far; `accuracy` only where it is new."""

    def close(self) -> None:
        """The run has ended."""


def run(config: TrainConfig, comm: MPI.Intracomm, on_progress: Progress | None = None) -> dict[str, Any] | None:
    """Trains. Collective over `comm`; blocks until all are done.

    Args:
        config: the same on all ranks.
        comm: all ranks of the run: servers first, then workers.
        on_progress: told on rank 0.

    Returns:
        On rank 0 the keys of `psgd train --json`; None elsewhere.

    Raises:
        AgreedUsageError: wrong options or data, on all ranks alike.
        UsageError: data that this rank alone cannot read.
    """
    serverless = strategies.serverless(config.strategy)
    servers = (1 if comm.Get_size() > 1 and not serverless else 0) if config.servers is None else config.servers
    workers = comm.Get_size() - servers
    serves = comm.Get_rank() < servers
    dataset, statistics, facts = _open(config, comm, needs_data=not serves)
    samples = facts["samples"]
    model = models.build(config.model, tuple(facts["shape"]), facts["classes"], hidden=config.hidden)
    with Journal(config.log if comm.Get_rank() == 0 else None) as journal:
        journal.write("start", **asdict(config) | {"workers": workers, "servers": servers, "samples": samples})
        metrics = RunMetrics(
            workers,
            _teller(journal, on_progress),
            samples_per_epoch=samples,
            target_accuracy=config.target_accuracy,
            waits=None if config.log is None else Waits(),
        )
        params = np.empty(model.layout.size, np.float32) if serves else model.init(config.seed)
        slowness = Stragglers(config.inject, max(0, comm.Get_rank() - servers), workers)
        trainer = None if serves else _Trainer(config, dataset, statistics, model, params, slowness)
        if on_progress is not None and comm.Get_rank() == 0:
            on_progress.start(samples * config.epochs, config.epochs)
        connection = connect(
            comm,
            params,
            strategy=config.strategy,
            servers=servers,
            lr=schedule(config, samples, workers),
            rule=rules.create(config.optimizer, config.momentum, config.weight_decay),
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
            **_strategy_options(config, samples),
        )
        # Overflow is told as a loss that is not finite, not as a warning from the depths of each rank.
        with np.errstate(over="ignore", invalid="ignore"):
            with connection as ps:
                if trainer is not None and not ps.is_server:
                    trainer.train(ps)
            if trainer is not None:
                model.bind(params, np.zeros_like(params))  # the final ones, wherever training has computed
            seconds = metrics.elapsed_s()
            result = _result(config, comm, connection, metrics, seconds, trainer, facts["test_samples"])
        if result is not None:
            _write_waits(journal, metrics)
            journal.write("end", **result)
        return result


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
    names = STRATEGY_OPTIONS.get(config.strategy, ())
    given = {name: getattr(config, name) for name in names if getattr(config, name) is not None}
    if "local_from" in given:
        given["local_from"] *= samples
    return given


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
        params: np.ndarray[Any, Any],
        slowness: Stragglers,
    ) -> None:
        assert dataset is not None
        self._slowness = slowness
        self._config = config
        self._dataset = dataset
        self._model = model
        self._batches = Batches(dataset.train, statistics, config.batch_size)
        self._test = Batches(dataset.test, statistics, EVALUATION_BATCH)
        self._context = model.context(config.batch_size)
        self._test_context = model.context(EVALUATION_BATCH)
        self._warm_up(params)

    def _warm_up(self, params: np.ndarray[Any, Any]) -> None:
        """Compiles what a step needs before the clock starts."""
        self._model.bind(params, np.zeros_like(params))
        self._batches.fetch(np.zeros(4, np.int64)[: 2 * self._config.batch_size : 2])  # strided, as a shard's batches
        x, y = self._batches.fetch(np.zeros(1, np.int64))
        self._model.gradient(self._context, x, y)
        self._test.ordered(0, min(1, self._test.samples))

    def train(self, ps: Connection) -> None:
        """All epochs; a worker that has run out of samples in an epoch pushes none and keeps pace."""
        config, model, batches, context = self._config, self._model, self._batches, self._context
        model.bind(ps.params, ps.grads)
        sampler = Sampler(self._dataset.train.samples, ps.workers, ps.worker, config.batch_size, config.seed)
        for epoch in range(config.epochs):
            for step in range(sampler.steps):
                indices = sampler.batch(epoch, step)
                loss = 0.0
                if len(indices):
                    start = time.perf_counter()
                    x, y = batches.fetch(indices)
                    loss = model.gradient(context, x, y, ps.overlap(len(indices)))
                    self._slowness.sleep(epoch * sampler.steps + step, time.perf_counter() - start)
                ps.step(len(indices), loss)
                if ps.stop:
                    return
                if ps.worker == 0 and self._due(epoch * sampler.steps + step + 1, sampler.steps):
                    model.bind(ps.evaluated_params, ps.grads)
                    correct, loss_sum = self.evaluate(0, 1)
                    model.bind(ps.params, ps.grads)
                    count = max(1, self._test.samples)
                    ps.report(correct / count, loss_sum / count)

    def _due(self, done: int, steps: int) -> bool:
        """Whether an evaluation is due after so many steps, of `steps` an epoch; the last one is made elsewhere."""
        every = self._config.eval_every * steps
        return bool(every) and done < self._config.epochs * steps and done // every > (done - 1) // every

    def evaluate(self, part: int, parts: int) -> tuple[int, float]:
        """Right answers and summed loss on every `parts`-th batch of the test set from `part` on."""
        correct, loss_sum = 0, 0.0
        for start in range(part * EVALUATION_BATCH, self._test.samples, parts * EVALUATION_BATCH):
            x, y = self._test.ordered(start, min(start + EVALUATION_BATCH, self._test.samples))
            right, loss = self._model.evaluate(self._test_context, x, y)
            correct += right
            loss_sum += loss
        return correct, loss_sum


def _teller(journal: Journal, progress: Progress | None) -> Any:
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


def _write_waits(journal: Journal, metrics: RunMetrics) -> None:
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
        correct, loss_sum = trainer.evaluate(comm.Get_rank() - connection.servers, connection.workers)
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
            "device": "cpu",
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
            "checkpoint": None,
        }
    )
    return result
