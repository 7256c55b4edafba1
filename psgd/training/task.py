"""A run's data and model, the same on all ranks."""

import json
import socket
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from psgd.config import TrainConfig
from psgd.data import Dataset
from psgd.data.description import describe
from psgd.data.normalization import Statistics, validate
from psgd.estimate import activations
from psgd.kernels.errors import AgreedContractError, AgreedUsageError, UsageError
from psgd.nn import models
from psgd.nn.model import Model
from psgd.runtime.agreement import gather
from psgd.training.from_file import DataDescription, make_model, read_dataset
from psgd.training.trainable import OwnModel, Trainable
from psgd.user import reference


@dataclass(frozen=True)
class Task:
    """What a run learns.

    Attributes:
        model: with the layout of the parameters.
        samples: of the training set.
        test_samples: of the test set.
        statistics: of the training set, for normalization.
        dataset: None on ranks that need no data.
        tokens: of a sample, where samples are tokens; else 0.
    """

    model: Trainable
    samples: int
    test_samples: int
    statistics: Statistics
    dataset: Dataset | None
    tokens: int = 0


def open_task(config: TrainConfig, comm: MPI.Intracomm, needs_data: bool) -> Task:
    """Opens the data where it is needed, and compares it. Collective, blocks.

    Rank 0 alone reads all values, checks them and gives all what it found. With `config.check_data` every rank that
    needs the data reads all of it too, for a checksum.

    Raises:
        AgreedUsageError: data or a model that cannot be, on some rank; the same on all.
        AgreedContractError: ranks with other data than rank 0's; the same on all.
    """
    dataset, made = None, reference.find("--model", config.model)
    computed = reference.is_reference(config.dataset)  # perhaps with random numbers, on each rank by itself
    mine: dict[str, Any] = {"host": socket.gethostname()}
    leads = comm.Get_rank() == 0
    own: dict[str, Any] = {"hidden": config.hidden, **config.of_the_model()}
    try:
        if needs_data or leads:
            dataset = read_dataset(config)
            mine["data"] = describe(dataset, config.check_data or computed)
        if leads and dataset is not None:
            statistics = validate(dataset)
            mine["statistics"] = [statistics.mean, statistics.std]
            if made is None:
                _build(config, dataset.sample_shape, dataset.classes, dataset.tokens, own)
    except UsageError as error:
        mine["error"] = str(error)
    everyone = gather(comm, mine)
    _refuse_errors(everyone)
    _compare(config.dataset, everyone)
    data, (mean, std) = everyone[0]["data"], everyone[0]["statistics"]
    shape, classes, tokens = tuple(data["sample shape"]), data["classes"], bool(data.get("tokens"))
    model: Trainable
    if made is None:
        model = OwnModel(_build(config, shape, classes, tokens, own))
    else:
        described = DataDescription(shape, classes, data["training samples"], tokens)
        model = make_model(config, comm, made, described)
        if isinstance(model, OwnModel) and config.parts == 1:
            model = OwnModel(_recomputed(config, model.model))
        elif config.recompute is not None and not isinstance(model, OwnModel) and not config.in_pieces:
            raise AgreedUsageError(
                f"--recompute: expected a model of psgd's layers or --mesh, got {made.where}: use "
                "torch.utils.checkpoint there"
            )
    counts = data["training samples"], data["test samples"]
    return Task(model, *counts, Statistics(mean, std), dataset, shape[0] if tokens else 0)


def _build(config: TrainConfig, shape: tuple[int, ...], classes: int, tokens: bool, own: dict[str, Any]) -> Model:
    """A model of the catalog. Raises UsageError where it does not fit the data, or `--recompute` does not suffice."""
    model = models.build(config.model, shape, classes, tokens=tokens, ranks=config.parts, **own)
    return model if config.parts > 1 else _recomputed(config, model)


def _recomputed(config: TrainConfig, model: Model) -> Model:
    """The model with `--recompute`. Raises UsageError where that does not suffice."""
    return activations.recomputed(model, config.recompute, config.batch_size, config.device)


def _refuse_errors(everyone: list[dict[str, Any]]) -> None:
    """Raises the first rank's error on all; it is named where rank 0 has found nothing wrong."""
    for rank, each in enumerate(everyone):
        if "error" in each:
            where = f"rank {rank} on {each['host']}: " if rank else ""
            raise AgreedUsageError(where + each["error"])


def _compare(name: str, everyone: list[dict[str, Any]]) -> None:
    """Raises on all ranks where one has other data than rank 0."""
    first = everyone[0]["data"]
    for key in first:
        sides: dict[str, list[str]] = {}
        for rank, each in enumerate(everyone):
            if "data" in each:
                where = f"rank {rank} on {each['host']}"
                sides.setdefault(json.dumps(each["data"].get(key)), []).append(where)
        if len(sides) > 1:
            shown = "; ".join(f"{value} on {', '.join(_brief(ranks))}" for value, ranks in sides.items())
            drawn = "Does its function draw random numbers that no seed fixes? " if reference.is_reference(name) else ""
            raise AgreedContractError(
                f"dataset {name}: all ranks need the same data, but {key}: {shown}. {drawn}Is one of them an old or "
                "incomplete copy? Copy it again, or use a folder that all nodes share"
            )


def _brief(ranks: list[str]) -> list[str]:
    return ranks if len(ranks) <= 4 else [*ranks[:4], f"... ({len(ranks)} in all)"]
