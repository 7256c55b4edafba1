"""The model and the dataset that a user's file makes: `--model FILE.py:make`, `--dataset FILE.py:make_dataset`."""

import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from psgd.checkpoint.folder import Checkpoint
from psgd.config import TrainConfig
from psgd.data import Dataset, load
from psgd.data.values import dataset_of
from psgd.kernels.errors import AgreedContractError, AgreedUsageError, UsageError
from psgd.kernels.notice import say
from psgd.nn.model import Model
from psgd.runtime.agreement import gather
from psgd.training.trainable import Trainable, own
from psgd.user import reference, script
from psgd.user.reference import Reference


@dataclass(frozen=True)
class DataDescription:
    """What a user's function may ask for, to make a model that fits.

    Attributes:
        sample_shape: of one sample, as (channels, height, width) or (d,).
        classes: labels are 0 to classes - 1.
        samples: of the training set.
        tokens: samples are numbers of tokens below `classes`, each of which has a label.
    """

    sample_shape: tuple[int, ...]
    classes: int
    samples: int
    tokens: bool = False


def read_dataset(config: TrainConfig) -> Dataset:
    """Opens the dataset, of a name, a path, or a user's function.

    Raises:
        UsageError: there is no such thing; a DataError for what is wrong with its contents.
    """
    found = reference.find("--dataset", config.dataset)
    if found is None:
        return load(config.dataset, config.context)
    made = script.load(found).call(config.seed)
    try:
        return dataset_of(made, found.where)
    except UsageError:
        raise
    except Exception as error:  # of the items of the user's own dataset
        raise UsageError(f"{found.where}: its items cannot be read: {type(error).__name__}: {error}") from error


def make_model(config: TrainConfig, comm: MPI.Intracomm, found: Reference, data: DataDescription) -> Trainable:
    """Runs the user's function on every rank; all have the same model then. Collective, blocks.

    Raises:
        AgreedUsageError: some rank has found a fault; the same on all.
        AgreedContractError: ranks have other files or other models than rank 0; the same on all.
    """
    mine: dict[str, Any] = {"host": socket.gethostname()}
    model = None
    try:
        loaded = script.load(found)
        mine["contents of the file"] = loaded.checksum
        model = _trainable(found, loaded.call(config.seed, data), config, data)
        mine["parameters"] = model.layout.to_json()
        if comm.Get_rank() == 0 and hasattr(model, "check"):
            _trial(found, data, model.check, data.sample_shape, data.classes)
    except UsageError as error:
        mine["error"] = str(error)
    everyone = gather(comm, mine)
    for rank, each in enumerate(everyone):
        if "error" in each:
            where = f"rank {rank} on {each['host']}: " if rank else ""
            raise AgreedUsageError(where + each["error"])
    for key in ("contents of the file", "parameters"):
        other = next((rank for rank, each in enumerate(everyone) if each[key] != everyone[0][key]), None)
        if other is not None:
            raise AgreedContractError(
                f"{found.where}: all ranks need the same model, but the {key} differ on rank 0 on "
                f"{everyone[0]['host']} and rank {other} on {everyone[other]['host']}. Is one of them an old copy?"
            )
    assert model is not None  # else there was an error
    return model


def _trainable(found: Reference, made: object, config: TrainConfig, data: DataDescription) -> Trainable:
    """What the function has returned, as what a run trains."""
    parts = made if isinstance(made, tuple) else (made, None)
    torch = sys.modules.get("torch")  # it is loaded where something is a module of it
    if len(parts) == 2 and isinstance(parts[0], Model):
        if parts[1] is not None:
            raise UsageError(f"{found.where}: expected no loss with a model of psgd.nn, which has its own, got one")
        model: Trainable = _trial(found, data, own, parts[0], data.sample_shape, data.classes, data.tokens)
        return model
    if len(parts) == 2 and torch is not None and _is_module(parts[0], torch):
        if data.tokens:
            raise UsageError(
                f"{found.where}: expected a model of psgd's layers for text, got a PyTorch module; train one in a loop "
                "of your own, with psgd.torch.wrap"
            )
        from psgd.training.torch_module import TorchModel, UncutModule

        kind = UncutModule if config.in_pieces or config.shard in (2, 3) else TorchModel
        module: TorchModel = _trial(found, data, kind, *parts, data.sample_shape)
        got = next((p.device for p in module.module.parameters()), None)
        if not config.in_pieces and config.device == "cpu" and got is not None and got.type not in ("cpu", "meta"):
            raise UsageError(f"{found.where}: expected a module on the CPU, got one on {got}: use --device cuda")
        return module
    hint = "; does the function return it?" if made is None else ""
    given = f"a tuple of {', '.join(type(each).__name__ for each in made)}" if isinstance(made, tuple) else type(made)
    shown = given if isinstance(given, str) else given.__name__
    raise UsageError(
        f"{found.where}: expected a torch.nn.Module, a psgd.nn.model.Model, or (module, loss), got {shown}{hint}"
    )


def _is_module(value: object, torch: Any) -> bool:
    from psgd.torch.wrapped import Wrapped

    return isinstance(value, (torch.nn.Module, Wrapped))


def _trial(found: Reference, data: DataDescription, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls what calls the module, so that one that cannot take the samples is refused now, not in the first step."""
    try:
        return function(*arguments)
    except UsageError as error:
        raise UsageError(f"{found.where}: {str(error).removeprefix('psgd.torch.wrap: ')}") from None
    except Exception as error:
        said = " ".join(str(error).split())[:500]
        raise UsageError(
            f"{found.where}: cannot be called with a batch of shape (n, {', '.join(map(str, data.sample_shape))}) and "
            f"its labels: {type(error).__name__}: {said}"
        ) from error


def tell_changes(config: TrainConfig, resumed: Checkpoint | None, files: dict[str, str]) -> None:
    """Says which of the user's files have other contents than when the run was saved that is resumed now."""
    saved = {} if resumed is None else resumed.manifest.run.get("files")
    for name, checksum in files.items():
        was = saved.get(name) if isinstance(saved, dict) else None
        if isinstance(was, str) and was != checksum:
            say(
                f"warning: resume: --{name} {getattr(config, name)}: the file has changed since the checkpoint: its "
                f"SHA-256 began with {was[:12]}, now with {checksum[:12]}"
            )


def checksums(config: TrainConfig) -> dict[str, str]:
    """Of the user's files that make a run, by option; for its checkpoints.

    Raises:
        UsageError: one cannot be read any more.
    """
    found = {name: reference.find(f"--{name}", getattr(config, name)) for name in ("model", "dataset")}
    return {name: reference.checksum(each.read()) for name, each in found.items() if each is not None}
