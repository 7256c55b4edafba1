"""What the options of a run stand for: its first parameters, its update rule, its schedule, its backend."""

from typing import TYPE_CHECKING, Any

from psgd.backend.host import HostBackend
from psgd.config import TrainConfig
from psgd.data import Dataset
from psgd.data.normalization import Statistics
from psgd.kernels.array import Array
from psgd.nn.model import Model
from psgd.optim import rules, schedules
from psgd.optim.host_updates import HostUpdates
from psgd.optim.schedules import Schedule

if TYPE_CHECKING:
    from psgd.backend.cuda import CudaBackend


def first_params(config: TrainConfig, model: Model) -> Array:
    """Where a worker starts, on its device; with `--offload` in page-locked memory."""
    params = model.init(config.seed)
    if config.device == "cpu":
        return params
    if config.offload is not None:
        from psgd.backend.offload.bus import pinned_copy

        return pinned_copy(params)
    import cupy

    return cupy.asarray(params)


def rule(config: TrainConfig, serves: bool) -> rules.Rule:
    """The update rule; of a server with `--server-device cuda` its arithmetic is on the GPU."""
    chosen = rules.create(config.optimizer, config.momentum, config.weight_decay)
    if not serves or config.server_device == "cpu":
        return chosen
    from psgd.backend import rules_on_gpu

    return rules_on_gpu.on_device(chosen)


def backend(
    config: TrainConfig, model: Model, dataset: Dataset, statistics: Statistics, by: HostUpdates | None = None
) -> "HostBackend | CudaBackend":
    """Where a worker computes its gradients; its memory is for no more samples than there are.

    Args:
        config: of the run.
        model: on no vector yet.
        dataset: train and test.
        statistics: of the training set.
        by: who takes its steps, or None where its strategy does.
    """
    batch_size = min(config.batch_size, dataset.train.samples)
    if config.device == "cpu":
        return HostBackend(model, dataset, statistics, batch_size)
    from psgd.backend.cuda import CudaBackend

    keep = None if config.data_device == "auto" else config.data_device == "cuda"
    if config.offload is not None:
        from psgd.backend.offload.offloaded import OffloadedBackend

        how: dict[str, Any] = {"what": config.offload, "updates": by, "behind": config.offload_staleness}
        return OffloadedBackend(model, dataset, statistics, batch_size, keep, **how)
    return CudaBackend(model, dataset, statistics, batch_size, keep)


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


def strategy_options(config: TrainConfig, samples: int) -> dict[str, Any]:
    """The strategy's own options that were given; epochs become samples."""
    return {name: value * samples if name == "local_from" else value for name, value in config.own.items()}
