"""Gradients of a model whose units come and go with an exchange; evaluation in which all workers take part."""

from typing import Any

from psgd.backend.host import HostBackend
from psgd.config import TrainConfig
from psgd.data import Dataset
from psgd.data.normalization import Statistics
from psgd.nn.model import Model
from psgd.parallel.sharded.exchange import Exchange
from psgd.training.sharded.shared_passes import Passes


def make(
    config: TrainConfig, model: Model, exchange: Exchange, dataset: Dataset, statistics: Statistics
) -> "ShardedHostBackend":
    """The backend on this worker's device. `model` is what `by_unit` has returned for the exchange."""
    batch_size = min(config.batch_size, dataset.train.samples)
    backend: Any
    if config.device == "cpu":
        backend = ShardedHostBackend(model, dataset, statistics, batch_size)
    else:
        from psgd.training.sharded.sharded_cuda_backend import ShardedCudaBackend

        keep = None if config.data_device == "auto" else config.data_device == "cuda"
        backend = ShardedCudaBackend(model, dataset, statistics, batch_size, keep)
    backend.passes_through(exchange)
    made: ShardedHostBackend = backend
    return made


class ShardedHostBackend(Passes, HostBackend):
    """On this process's cores. Implements `Backend`."""
