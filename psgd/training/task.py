"""A run's data and model, the same on all ranks."""

from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from psgd.config import TrainConfig
from psgd.data import Dataset, load
from psgd.data.normalization import Statistics, validate
from psgd.kernels.errors import AgreedUsageError, UsageError
from psgd.nn import models
from psgd.nn.model import Model
from psgd.runtime.agreement import broadcast


@dataclass(frozen=True)
class Task:
    """What a run learns.

    Attributes:
        model: with the layout of the parameters.
        samples: of the training set.
        test_samples: of the test set.
        statistics: of the training set, for normalization.
        dataset: None on ranks that need no data.
    """

    model: Model
    samples: int
    test_samples: int
    statistics: Statistics
    dataset: Dataset | None


def open_task(config: TrainConfig, comm: MPI.Intracomm, needs_data: bool) -> Task:
    """Opens the data where it is needed. Rank 0 alone reads all values, checks them and broadcasts what it found.

    Raises:
        AgreedUsageError: data or a model that cannot be, on all ranks alike.
        UsageError: data that this rank alone cannot read.
    """
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
    model = models.build(config.model, tuple(facts["shape"]), facts["classes"], hidden=config.hidden)
    statistics = Statistics(facts["mean"], facts["std"])
    return Task(model, facts["samples"], facts["test_samples"], statistics, dataset)
