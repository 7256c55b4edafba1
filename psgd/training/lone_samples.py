"""Batches of one sample, which layers that normalize over a batch refuse: found before training, with a way out."""

from mpi4py import MPI

from psgd.config import TrainConfig
from psgd.kernels.errors import AgreedUsageError
from psgd.kernels.notice import counted
from psgd.parallel.cuts.decision import Decision
from psgd.runtime.agreement import gather
from psgd.training.roles import Roles
from psgd.training.task import Task


def checked(task: Task, config: TrainConfig, roles: Roles, comm: MPI.Intracomm) -> Task:
    """Returns the task, where each of its layers can take the smallest of its batches. Collective, blocks.

    Raises:
        AgreedUsageError: one cannot; on all ranks.
    """
    needs_several = getattr(task.model, "needs_several", None)  # modules of PyTorch have it
    stages = 1 if roles.mesh is None else roles.mesh.sizes["pipe"]
    if needs_several is None or not _has_one(task.samples, roles.workers, config, config.batch_size, stages):
        return task
    layer = needs_several() if comm.Get_rank() == 0 else None
    layer = gather(comm, {"layer": layer})[0]["layer"]
    if layer is None:
        return task
    batches = f"batches of {config.batch_size}"
    if stages > 1:
        wish = _wish(task.samples, config, config.batch_size, stages)
        batches += f" and microbatches of {wish.size}"
    near = sorted(range(2, 2 * config.batch_size + 8), key=lambda size: abs(size - config.batch_size))
    fine = (size for size in near if not _has_one(task.samples, roles.workers, config, size, stages))
    other = next(fine, None)
    raise AgreedUsageError(
        f"{config.model}: {layer} cannot normalize one sample alone, as the last {'micro' * (stages > 1)}batch of an "
        f"epoch would be: {task.samples:,} samples on {counted(roles.workers, 'worker')} in {batches}. Use "
        + ("a dataset with more samples" if other is None else f"--batch-size {other}")
    )


def sizes(samples: int, workers: int, batch: int, part: int) -> set[int]:
    """How many samples the passes of an epoch have, those of all workers.

    Args:
        samples: of an epoch.
        workers: that share them.
        batch: samples of a worker's step.
        part: samples of a microbatch; `batch` where there are none.
    """
    shares = {samples // workers, -(-samples // workers)}
    steps = {size for share in shares for size in (min(batch, share), share % batch)}
    return {size for step in steps for size in (min(part, step), step % part)} - {0}


def _has_one(samples: int, workers: int, config: TrainConfig, batch: int, stages: int) -> bool:
    return 1 in sizes(samples, workers, batch, _wish(samples, config, batch, stages).size)


def _wish(samples: int, config: TrainConfig, batch: int, stages: int) -> Decision:
    return Decision(stages, min(batch, samples), config.microbatches, config.pipe_schedule)
