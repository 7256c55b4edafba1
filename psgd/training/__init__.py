"""One rank's part of `psgd train`: `run`, and the pieces that it puts together.

Owns who does what (`roles`), opening the data (`task`), what is trained (`trainable`; `from_file` makes it of a user's
file, `torch_module` of a PyTorch module, `cut_model` of a model that is cut over several ranks, `sharded` of one
of which each worker keeps a part), what the options stand for (`preparation`), a worker's loop (`trainer`), the events
of the log (`events`), and the result (`result`). May import every other room of psgd. Begin with `run`, then `trainer`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from psgd.checkpoint.requests import CheckpointRequest
from psgd.collectives.shm import call_kernel
from psgd.config import TrainConfig
from psgd.connection import Connection
from psgd.connector import connect
from psgd.connector import offload as offloads
from psgd.connector.observed import ObservedConnection
from psgd.kernels.array import Array
from psgd.kernels.errors import AgreedUsageError, UsageError
from psgd.kernels.notice import say
from psgd.metrics.callback import Callback
from psgd.metrics.run_metrics import RunMetrics
from psgd.metrics.trace.span import Span
from psgd.optim.host_updates import HostUpdates
from psgd.runtime.device_vectors import on_host
from psgd.runtime.faults import Injector
from psgd.runtime.new_files import lose
from psgd.training import cut_model, events, from_file, lone_samples, preparation, result
from psgd.training.events import ProgressDisplay
from psgd.training.roles import assign
from psgd.training.sharded import sharded_model
from psgd.training.survival import survival
from psgd.training.survival.duties import Duties
from psgd.training.task import Task, open_task
from psgd.training.trainable import OwnModel, Trainable

_OF_CONNECT = (
    *("strategy", "clip_norm", "reduction", "staleness_lr", "on_nan"),
    *("compress", "density", "compress_sync", "record", "replay", "trace"),
    *("checkpoint_dir", "checkpoint_every", "checkpoint_minutes", "checkpoint_keep", "resume"),
)
"""Options that are `psgd.connect`'s, by the same name."""


def run(
    config: TrainConfig,
    comm: MPI.Intracomm,
    on_progress: ProgressDisplay | None = None,
    request: CheckpointRequest | None = None,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any] | None:
    """Trains. Collective over `comm`; blocks until all are done.

    Args:
        config: the same on all ranks.
        comm: all ranks of the run.
        on_progress: shows the progress, on rank 0, and where that dies on a rank that goes on in its place.
        request: asks for checkpoints from outside.
        callbacks: told of this rank's part.

    Returns:
        On rank 0, or the one that goes on in its place, the keys of `psgd train --json`; None elsewhere.

    Raises:
        AgreedUsageError: wrong options or data, on all ranks alike.
        UsageError: data that this rank alone cannot read.
    """
    rank, roles = comm.Get_rank(), assign(config, comm)
    workers, servers, serves = roles.workers, roles.servers, roles.serves
    task = lone_samples.checked(open_task(config, comm, needs_data=not serves), config, roles, comm)
    task = cut_model.cut(task, config, roles.mesh)
    task = sharded_model.shard(task, config, roles)
    samples, layout = task.samples, task.model.layout
    if config.keep_best:
        request = request or CheckpointRequest()
    with Duties(config, rank == 0, on_progress, request) as duties:
        duties.log.write("start", **config.flat() | {"workers": workers, "servers": servers, "samples": samples})
        listeners: list[events.Listener] = [duties.board]
        if config.keep_best and request is not None:
            listeners.append(events.saves_best(request))
        metrics = RunMetrics(
            workers,
            events.listener(duties.log, on_progress, *listeners, with_perplexity=bool(task.tokens)),
            samples_per_epoch=samples,
            target_accuracy=config.target_accuracy if roles.leads else 0.0,
            patience=config.early_stop if roles.leads else 0,
        )
        duties.watch(metrics)
        offload = _offload(config, task, servers, workers)
        params = task.model.vector(config, serves)
        injector = Injector(config.inject, roles.index, workers, servers, serves)
        if serves:
            injector.watch(metrics, params)
        if not servers and rank % 2:  # what rank 0 compiles last: on a fresh installation two ranks share the work
            call_kernel.prepare(params.dtype)
        trainer = None if serves else cut_model.trainer(task.model)(config, task, params, injector)
        files = from_file.checksums(config)
        connection = connect(
            roles.data,
            task.model.connected(params),
            servers=servers,
            placement=roles.serving or "auto",
            lr=preparation.schedule(config, samples, workers),
            rule=preparation.rule(config, serves),
            compress_warmup=config.compress_warmup * samples,
            metrics=metrics,
            run=config.of_the_run() | ({"files": files} if files else {}),
            layout=layout,
            part=cut_model.part(task.model),
            shard=sharded_model.choice(config, task.model),
            checkpoint_request=request,
            callbacks=callbacks,
            offload=offload,
            **{name: getattr(config, name) for name in _OF_CONNECT},
            **preparation.strategy_options(config, samples),
        )
        if trainer is not None and isinstance(connection, ObservedConnection):
            backend = trainer.backend
            connection.trace_also(*(Span(backend, kind, kind) for kind in ("gradient", "evaluate")))
            connection.trace_also(*cut_model.passes(task.model))
        survival.prepare(connection, comm, config, duties, None if trainer is None else trainer.course)
        _show_start(connection, config.epochs, samples, duties)
        if rank == 0:
            from_file.tell_changes(config, connection.resumed_from, files)
        # Overflow is reported as a loss that is not finite, not as a warning from the depths of each rank.
        with np.errstate(over="ignore", invalid="ignore"):
            with connection as ps:
                if trainer is not None and not ps.is_server:
                    trainer.train(ps)
            if trainer is not None:
                trainer.backend.bind(params, np.zeros_like(params))  # the final ones, wherever training has computed
                trainer.backend.wait()
            more = cut_model.more(task.model)
            found = result.collect(
                config, comm, connection, metrics, trainer, task.test_samples, task.tokens, roles.counts
            )
        if found is not None:
            found |= more
            duties.end(found)
        if config.save is not None and (roles.saves or duties.leads) and not connection.leaving:
            _save(config.save, task.model, params, duties.leads)
        for kind in (cut_model, sharded_model):
            kind.close(task.model)
        roles.free()
        return found


def _offload(config: TrainConfig, task: Task, servers: int, workers: int) -> str | HostUpdates | None:
    """What `psgd.connect` needs to know of `--offload`: of psgd's own layers the vectors are on the host by then."""
    if config.offload is None:
        return None
    if not isinstance(task.model, OwnModel):
        if config.offload != "optimizer" or config.offload_staleness:
            raise AgreedUsageError(
                f"--offload {config.offload}: expected a model of psgd's own layers, got {config.model}; --offload "
                "optimizer without --offload-staleness takes a PyTorch module too"
            )
        return config.offload
    own = preparation.strategy_options(config, task.samples)
    task.model.updates = offloads.updates(config.strategy, own, servers, workers, config.offload_staleness)
    return task.model.updates


def _save(path: Path, model: Trainable, params: Array, leads: bool) -> None:
    """Who leads writes the final weights under their names. A full disk costs the file, not the run.

    Weights that are not numbers are not written: the file may have sound ones of an earlier run. The ranks that hold
    one copy of the model do this together.
    """
    weights = on_host(params)
    if model.agreed(not np.isfinite(weights).all()):
        if leads:
            lose(
                f"--save {path}", "NaN or infinity in the final weights: not written, any earlier file stays as it was"
            )
        return
    try:
        model.save(path, weights)
    except UsageError as error:
        lose(f"--save {path}", str(error).removeprefix(f"--save {path}: "))


def _show_start(connection: Connection, epochs: int, samples: int, duties: Duties) -> None:
    """Shows where the run begins: at 0, or at a checkpoint."""
    resumed = connection.resumed_from
    done = 0 if resumed is None else resumed.manifest.samples
    duties.show(samples * epochs, epochs, done)
    if duties.leads and done >= samples * epochs:
        say(f"nothing left to do: the checkpoint is at epoch {done // samples} of {epochs}")
