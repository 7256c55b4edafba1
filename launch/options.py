"""The options of `psgd train`, from flags and from a TOML file, checked one by one before anything starts."""

import codecs
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from psgd.backend.offload import goes_with
from psgd.checkpoint import export
from psgd.checkpoint import options as checkpoint
from psgd.config import TrainConfig, configure
from psgd.config import options as config_options
from psgd.kernels.errors import UsageError
from psgd.launch.usage import synonyms
from psgd.metrics import tensorboard
from psgd.nn.catalog import MODELS
from psgd.parallel.schedules.catalog import SCHEDULES
from psgd.runtime import new_files
from psgd.runtime.option import Option
from psgd.runtime.ulfm.options import phases
from psgd.strategies import catalog as strategies
from psgd.strategies import on_parts, on_shards, requirements
from psgd.user import reference

if TYPE_CHECKING:
    from psgd.data import Dataset
    from psgd.nn.model import Model

F = TypeVar("F", bound=Callable[..., Any])


class UnreadableError(UsageError):
    """The configuration file cannot be read here; another host of the job may well read it."""


_METAVARS = {int: "N", float: "X", str: "TEXT"}


def flag(name: str) -> str:
    """Returns the command-line form of an option's name: `batch_size` is `--batch-size`."""
    return "--" + name.replace("_", "-")


def _with_value(name: str, value: object) -> str:
    return f"{flag(name)} {value}"


_FLAGS = requirements.Spelling(flag, _with_value, _with_value)


def train_options(function: F) -> F:
    """Decorates a click command with all options of a run; None where unset."""
    for name, option in reversed(config_options().items()):
        shown = option.default_text()
        text = f"{option.help}  [default: {shown}]" if shown else option.help
        if option.type is bool:
            decorate = click.option(f"{flag(name)}/--no-{flag(name)[2:]}", name, default=None, help=text)
        else:
            metavar = option.metavar or "|".join(option.names) or _METAVARS[option.type]
            # The values are checked by `convert`, in the same words for flags and files.
            several: dict[str, Any] = {"multiple": True, "callback": _joined} if name == "inject" else {}
            several["shell_complete"] = _completion(option)
            decorate = click.option(flag(name), name, type=str, default=None, metavar=metavar, help=text, **several)
        function = decorate(function)
    return function


def _completion(option: Option) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """What the shell offers for an option's value: its names, files where it is a path, else nothing."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(name) for name in option.names if name.startswith(incomplete)]
        path = option.type is Path or "PATH" in (option.metavar or "")
        return names or ([CompletionItem(incomplete, type="file")] if path else [])

    return complete


def _joined(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> str | None:
    """A flag that may be repeated, as one text."""
    return ",".join(values) if values else None


def _parsed(option: Option, text: object) -> object:
    """Reads a flag's text as the number it should be; what is none stays text, for the message."""
    if isinstance(text, str) and option.type in (int, float):
        try:
            return option.type(text)
        except ValueError:
            return text
    return text


def read_file(path: str) -> dict[str, Any]:
    """Reads options from a TOML file: `batch-size = 64` or `batch_size = 64`, at the top level.

    Raises:
        UnreadableError: no such file, or no permission.
        UsageError: not TOML, an unknown name (the nearest one is suggested), a wrong type or value.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        text = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UnreadableError(f"--config {path}: cannot be read: {reason}") from None
    try:
        table = tomllib.loads(text.decode(_encoding(text)))
    except (ValueError, RecursionError) as error:  # TOMLDecodeError and bad UTF-8 are ValueErrors
        raise UsageError(f"--config {path}: not TOML: {error}") from None
    known, values = config_options(), {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in known:
            near = synonyms.nearest(key, [each.replace("_", "-") for each in known])
            hint = f"did you mean {near}?" if near else "see psgd train --help"
            raise UsageError(f"--config {path}: unknown option {key!r}; {hint}")
        if name in values:
            raise UsageError(f"--config {path}: {key!r} is given twice, with - and with _")
        values[name] = known[name].check(f"{key} in {path}", value)
    return values


def _encoding(text: bytes) -> str:
    """What a text says of its encoding by its first bytes, as editors on Windows write them; UTF-8 without any."""
    marks = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32"}
    marks |= {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}  # after UTF-32, which begins alike
    return next((encoding for mark, encoding in marks.items() if text.startswith(mark)), "utf-8")


def build(flags: Mapping[str, object], config: str | None = None) -> TrainConfig:
    """Makes the configuration: defaults, then the file's values, then flags. Opens nothing but the file.

    Args:
        flags: by option's name, as click gives them; None is unset.
        config: the TOML file, or None.

    Raises:
        UsageError: one wrong option, named with what was expected.
    """
    known = config_options()
    values = read_file(config) if config is not None else {}
    for name, text in flags.items():
        if text is not None:
            if name == "schedule" and text in SCHEDULES:
                raise UsageError(f"--schedule {text}: that is a pipeline's; expected --pipe-schedule {text}")
            values[name] = known[name].check(flag(name), _parsed(known[name], text))
    if values.get("mesh") is not None or values.get("shard") is not None:
        values.setdefault("strategy", "allreduce")
    result = _with_mesh(_standing_by(configure(**values)))
    _check_checkpoints(values)
    if "hidden" in values and reference.is_reference(result.model):
        raise UsageError(f"--hidden: expected a model by name with it, got --model {result.model}; omit it")
    _check_model(values, result.model)
    _check_strategy(result)
    return result


def _standing_by(config: TrainConfig) -> TrainConfig:
    """The number of workers of a run that grows; refuses ranks that stand by for what cannot be begun again."""
    for name in ("spares", "grow"):
        if getattr(config, name) and config.checkpoint_dir is None:
            raise UsageError(f"{flag(name)}: expected --checkpoint-dir with it")
        if getattr(config, name) and "cuda" in (config.device, config.server_device):
            raise UsageError(f"{flag(name)}: expected ranks without GPUs, got --device cuda or --server-device cuda")
        if getattr(config, name) and config.trace is not None:
            raise UsageError(f"{flag(name)}: a trace is of ranks that stay the same; omit --trace")
    found = phases(config.grow)
    if not found:
        return config
    if config.workers is not None or "data" in config.axes:
        raise UsageError(f"--grow {config.grow}: it says how many workers there are; omit --workers and data in --mesh")
    if config.pipe_schedule is not None and not SCHEDULES[config.pipe_schedule].flushes:
        raise UsageError(
            f"--grow {config.grow}: expected a pipeline that is empty at an epoch's end, got --pipe-schedule "
            f"{config.pipe_schedule}; omit one of them"
        )
    return replace(config, workers=found[0].workers)


def _with_mesh(config: TrainConfig) -> TrainConfig:
    """The number of workers filled in from `--mesh`; refuses what does not go together with it, or without it."""
    axes = config.axes
    for name in ("cut", "pipe_schedule", "microbatches"):
        if getattr(config, name) is None:
            continue
        if config.mesh is None:
            raise UsageError(f"{flag(name)}: expected --mesh with it")
        if axes.get("pipe", 1) == 1 and name != "microbatches":
            raise UsageError(f"{flag(name)}: expected --mesh with pipe of 2 or more, got {config.mesh}")
    on_shards.check(config.strategy, vars(config), axes, _FLAGS)
    if config.parts > 1:
        on_parts.check(config.strategy, vars(config), config.own, axes, _FLAGS)
        if config.pipe_schedule and not SCHEDULES[config.pipe_schedule].flushes:
            on_parts.check_without_flushes(config.pipe_schedule, config.strategy, vars(config), _FLAGS)
    if "data" not in axes:
        return config
    if config.workers not in (None, axes["data"]):
        raise UsageError(f"--workers {config.workers}: expected data={config.workers} in --mesh, got {config.mesh}")
    return replace(config, workers=axes["data"])


def _check_model(values: Mapping[str, Any], model: str) -> None:
    """Refuses options, of those that were given, that the model does not have."""
    own = None if reference.is_reference(model) else MODELS[model]
    for name in ("layers", "width", "heads", "dropout", "context"):
        if name not in values:
            continue
        able = [
            each for each, entry in MODELS.items() if (entry.tokens if name == "context" else name in entry.options)
        ]
        if model not in able and not (own is None and name == "context"):
            raise UsageError(f"{flag(name)}: model {model} does not take it, expected --model {' or '.join(able)}")
    if "hidden" in values and own is not None and own.options:
        raise UsageError(f"--hidden: model {model} does not take it; it has {', '.join(map(flag, own.options))}")


def _check_strategy(config: TrainConfig) -> None:
    """Refuses options that the strategy does not have, and servers where it has none."""
    strategy = strategies.find(config.strategy)
    for name in sorted(set(config.own) - set(strategy.options)):
        able = " or ".join(strategies.with_option(name))
        raise UsageError(f"{flag(name)}: strategy {config.strategy} does not take it, expected --strategy {able}")
    requirements.check(config.strategy, vars(config), config.own, _FLAGS)
    if not strategy.servers and config.server_device != "cpu":
        raise UsageError(f"--server-device: strategy {config.strategy} has no servers; omit it")
    if config.servers == 0 and config.server_device != "cpu":
        raise UsageError(f"--server-device {config.server_device}: there are no servers with --servers 0; omit it")
    if strategy.servers and config.servers == 0 and (config.workers or 1) != 1:
        raise UsageError(f"--servers 0: expected --workers 1 with it, got {config.workers}")
    if config.placement != "auto" and (not strategy.servers or config.servers == 0):
        raise UsageError(f"--placement {config.placement}: there are no servers to place; omit it")
    if config.data_device != "auto" and config.device != "cuda":
        raise UsageError(f"--data-device {config.data_device}: expected --device cuda with it")
    goes_with.check(vars(config), _FLAGS)
    for name in ("early_stop", "keep_best"):
        if getattr(config, name) and not config.eval_every:
            raise UsageError(f"{flag(name)}: expected evaluations: --eval-every above 0 with it")
    if config.early_stop and (config.record or config.replay):
        raise UsageError("--early-stop: when a run stops depends on timing; omit it with --record and --replay")
    if config.target_accuracy and (config.record or config.replay):
        raise UsageError("--target-accuracy: when it is reached depends on timing; omit it with --record and --replay")


def check_alone(config: TrainConfig) -> None:
    """Refuses what a single rank has no use for."""
    requirements.check_alone(vars(config), _FLAGS)


def _check_checkpoints(values: Mapping[str, Any]) -> None:
    """Refuses the options of checkpoints, of those that were given, where there are none."""
    names = ("checkpoint_every", "checkpoint_minutes", "checkpoint_keep", "keep_best", "resume", "save_signal")
    if "checkpoint_dir" not in values:
        checkpoint.refuse([flag(name) for name in names if values.get(name)], "--checkpoint-dir")


def check_files(config: TrainConfig) -> None:
    """Checks that log, record and weights can be written, without creating them, and that the replay is there.

    Raises:
        UsageError: a folder is missing or not writable, a path is a folder itself, or no file is there.
    """
    for name in ("log", "record"):
        path: Path | None = getattr(config, name)
        if path is not None:
            new_files.check(f"--{name}", path)
    if config.trace is not None:
        from psgd.metrics.trace import chrome

        chrome.check("--trace", config.trace)
    if config.tensorboard is not None:
        tensorboard.check("--tensorboard", config.tensorboard)
    if config.save is not None:
        export.check(config.save, "--save")
    if config.replay is not None and not config.replay.is_file():
        raise UsageError(f"--replay {config.replay}: expected a file that --record wrote, but there is no such file")


def check_here(config: TrainConfig) -> None:
    """Checks on this host what the options point at: files, checkpoints, dataset, model on that. Reads headers.

    Raises:
        UsageError: one message; a `DataError` for the dataset.
    """
    check_files(config)
    if config.checkpoint_dir is not None:
        _check_directory(config, config.checkpoint_dir)
    model, made = (reference.find(flag(name), getattr(config, name)) for name in ("model", "dataset"))
    for each in filter(None, (model, made)):
        reference.check(each)  # the ranks run it
    if made is not None:
        return
    from psgd.data import load

    dataset = load(config.dataset, config.context)
    if model is None and (dataset.tokens or not MODELS[config.model].any_samples):
        model_of(config, dataset)


def model_of(config: TrainConfig, dataset: "Dataset") -> "Model":
    """Builds the run's model by name, on no vector. Raises UsageError where it does not fit the data."""
    from psgd.nn.models import build as build_model

    own: dict[str, Any] = {"hidden": config.hidden, **config.of_the_model()}
    shape, classes = dataset.sample_shape, dataset.classes
    return build_model(config.model, shape, classes, tokens=dataset.tokens, ranks=config.parts, **own)


def _check_directory(config: TrainConfig, directory: Path) -> None:
    """What a run would find out of its checkpoints once all ranks are there: it looks again, and at every byte."""
    from psgd.checkpoint import folder

    folder.check_writable(directory)
    run = {"strategy": config.strategy, "reduction": config.reduction, **config.of_the_run()}
    if not config.resume:
        folder.refuse_occupied(directory, run)
    elif (found := folder.newest(directory)) is not None:
        folder.compare(found, run)
    elif there := folder.folders(directory):
        raise UsageError(
            f"resume: {directory} has {len(there)} checkpoint(s), and none has a readable manifest; restore an "
            "intact copy, or move them away to start from the beginning"
        )
