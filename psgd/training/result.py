"""The end of a run: the final parameters evaluated, and what `psgd train --json` prints."""

import math
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from psgd.backend.interface import Tallies
from psgd.config import TrainConfig
from psgd.connection import Connection
from psgd.metrics import push_numbers
from psgd.metrics.outcomes import Outcomes
from psgd.metrics.perplexity import perplexity
from psgd.metrics.run_metrics import RunMetrics
from psgd.runtime.agreement import gather
from psgd.runtime.jsonable import clean
from psgd.runtime.ulfm.tolerance import TOLERANCE
from psgd.training.trainer import Trainer


class Evaluated(NamedTuple):
    """What the ranks have found together.

    Attributes:
        leads: this rank makes the result of it.
        total: correct predictions, sum of losses, bytes sent and received; there only.
        of_ranks: what each says of itself.
    """

    leads: bool
    total: NDArray[np.float64]
    of_ranks: list[dict[str, Any]]


def collect(
    config: TrainConfig,
    comm: MPI.Intracomm,
    connection: Connection,
    metrics: RunMetrics,
    trainer: Trainer | None,
    test_samples: int,
    tokens: int = 0,
    counts: bool = True,
) -> dict[str, Any] | None:
    """Evaluates the final parameters, each worker on its part. Collective.

    Args:
        config: the run's.
        comm: all ranks; those that died since have no part in this.
        connection: at its end.
        metrics: filled on the rank that leads.
        trainer: a worker's, with the final parameters.
        test_samples: of the test set.
        tokens: of a sample, where samples are tokens; 0 elsewhere.
        counts: what this rank evaluates counts; false where another rank of its copy of the model says the same.

    Returns:
        The result on rank 0, or the one that goes on in its place; None elsewhere.
    """
    seconds, survival = metrics.elapsed_s(), connection.mesh.survival

    def act(living: MPI.Intracomm) -> Evaluated:
        return _evaluate(living, connection, metrics, trainer, tokens, counts)

    leads, total, of_ranks = act(comm) if survival is None else survival.end(comm, act)
    if not leads:
        return None
    metrics.report(total[0].item() / max(1, test_samples), total[1].item() / max(1, test_samples), seconds)
    dropped = list(metrics.dropped)
    outcomes = Outcomes()
    for each in (each for each in of_ranks if "worker" in each):
        dropped[each["worker"]] += each["count"]
        outcomes.merge(each["outcomes"])
    vendor, version = MPI.get_vendor()
    found: dict[str, Any] = clean(
        {
            "dataset": config.dataset,
            "model": config.model,
            "strategy": config.strategy,
            "workers": connection.workers,
            "servers": connection.servers,
            "device": config.device,
            "mpi": f"{vendor} {'.'.join(map(str, version))}",
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
            "best_accuracy": metrics.best_accuracy,
            "bytes_sent": int(total[2]),
            "bytes_received": int(total[3]),
            "staleness": metrics.staleness_summary(),
            "seconds_to_target": metrics.seconds_to_target,
            "waited_seconds": metrics.waited_s,
            "computed_seconds": metrics.computed_s,
            "workers_applied": metrics.pushes,
            "workers_waited": metrics.waited,
            "workers_dropped": dropped,
            # Parameters that are not finite make no finite loss.
            "diverged": not (math.isfinite(metrics.loss) and math.isfinite(total[1])),
            "lost_ranks": [*TOLERANCE.lost, *([] if survival is None else survival.lost_ranks)],
            "checkpoint": connection.checkpoint,
            "requeue": connection.leaving,
        }
    )
    found |= clean({f"test_{name}": value for name, value in outcomes.means().items()})
    if (pushes := push_numbers.together(of_ranks, connection.workers)) is not None:
        found["pushes"] = pushes
    if tokens:
        found |= clean({"tokens_per_second": tokens * metrics.samples / seconds})
        found |= clean({"test_perplexity": perplexity(total[1].item() / max(1, test_samples))})
    return found


def _evaluate(
    comm: MPI.Intracomm,
    connection: Connection,
    metrics: RunMetrics,
    trainer: Trainer | None,
    tokens: int,
    counts: bool,
) -> Evaluated:
    """Evaluates this worker's part. Collective, blocks; made again, with other parts, where a worker dies in it."""
    part = _part(comm, connection)
    correct, loss_sum, sent, received = 0.0, 0.0, 0, 0
    seen = Outcomes()
    if trainer is not None:
        if isinstance(trainer.backend, Tallies) and not tokens:
            trainer.backend.tally = seen.add
        correct, loss_sum = trainer.backend.evaluate(*part)
        if not counts:
            correct, loss_sum = 0, 0.0
        sent, received = connection.bytes_sent, connection.bytes_received
    mine = np.array([correct, loss_sum, sent, received], np.float64)
    own: dict[str, Any] = {}
    if trainer is not None:
        own = {"count": connection.skipped, "outcomes": seen.counts.tolist()}
        own |= metrics.push_numbers.of_worker(connection.mesh.index)
    elif connection.servers:
        own = metrics.push_numbers.of_server(connection.mesh.index)
    of_ranks = gather(comm, own)
    total = np.empty_like(mine)
    comm.Reduce(mine, total, MPI.SUM, root=0)
    return Evaluated(comm.Get_rank() == 0, total, of_ranks)


def _part(comm: MPI.Intracomm, connection: Connection) -> tuple[int, int]:
    """This worker's part of the test set, and how many there are: those that live share it. Collective."""
    if connection.mesh.survival is None:
        return connection.mesh.index, connection.workers
    trains = [each["trains"] for each in gather(comm, {"trains": connection.is_worker})]
    return sum(trains[: comm.Get_rank()]), sum(trains)
