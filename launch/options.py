"""The options of `psgd train`, from flags and from a TOML file, checked one by one before anything starts."""

import difflib
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from psgd.checkpoint import export, requests
from psgd.checkpoint.export import FORMATS
from psgd.config import COMPRESSIBLE, NAMES, SERVERLESS, STRATEGY_OPTIONS, TrainConfig
from psgd.kernels.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])
Value = Any


class UnreadableError(UsageError):
    """The configuration file cannot be read here; another host of the job may well read it."""


class OptionKind(NamedTuple):
    """What one option takes: its type, the test of a value, how that test reads in words, and the help."""

    type: type
    good: Callable[[Value], object]
    words: str
    help: str
    names: tuple[str, ...] = ()


def _one_of(names: tuple[str, ...], text: str) -> OptionKind:
    return OptionKind(str, names.__contains__, f"one of {', '.join(names)}", text, names)


def _whole(low: int, text: str) -> OptionKind:
    return OptionKind(int, lambda value: value >= low, f"a whole number, at least {low}", text)


def _above_zero(text: str) -> OptionKind:
    return OptionKind(float, lambda v: v > 0 and math.isfinite(v), "a finite number above 0", text)


def _from_zero(text: str) -> OptionKind:
    return OptionKind(float, lambda v: v >= 0 and math.isfinite(v), "a finite number, at least 0", text)


_INJECT = (
    "Trouble on purpose, commas between or repeated: slow:W:F, slow:rotating:F:SHARE, compute:S, kill:RANK@STEP, "
    "stop:RANK@STEP:S, raise:RANK@STEP, nan:RANK@STEP; RANK is a worker's index, or s0 for server 0."
)
_SAVE = "Write the final weights here: .npz for NumPy, .pt for PyTorch."
KINDS: dict[str, OptionKind] = {
    "dataset": OptionKind(str, bool, "a name or a path", "digits, fashion-mnist, or a path: IDX, .npz, .npy."),
    "model": _one_of(("softmax", "mlp", "cnn", "resmlp"), "Network."),
    "hidden": _whole(1, "mlp, cnn, resmlp: units of the hidden layer."),
    "strategy": _one_of(
        ("sync", "async", "softsync", "ssp", *SERVERLESS), "When gradients are applied and workers go on."
    ),
    "workers": _whole(1, "Ranks that compute gradients.  [default: 2; under mpirun or srun the others]"),
    "servers": _whole(0, "Ranks that hold the parameters.  [default: 1; 0 on a single rank]"),
    "epochs": _whole(1, "Passes over the training set."),
    "batch_size": _whole(1, "Samples per worker and step."),
    "lr": _above_zero("Learning rate."),
    "optimizer": _one_of(("sgd", "momentum", "nesterov", "adam"), "Update rule, applied on the servers."),
    "momentum": OptionKind(float, lambda v: 0 <= v < 1, "a number in [0, 1)", "Factor of momentum and nesterov."),
    "weight_decay": _from_zero("L2 coefficient."),
    "schedule": _one_of(("constant", "step", "cosine"), "Learning rate over the run's progress."),
    "warmup_epochs": _from_zero("Epochs of linear warm-up from 0."),
    "step_epochs": _above_zero("Epochs between two steps of the step schedule."),
    "step_factor": _above_zero("What each step multiplies the rate by."),
    "scale_lr": OptionKind(bool, lambda v: True, "true or false", "Multiply the rate by the number of workers."),
    "clip_norm": _from_zero("Largest global gradient norm; 0 is off."),
    "reduction": _one_of(("mean", "sum"), "mean over the samples; sum is that times the workers."),
    "seed": OptionKind(int, lambda v: 0 <= v < 2**63, "a whole number from 0 to 2^63 - 1", "Of all randomness."),
    "eval_every": _from_zero("Epochs between evaluations, 0.25 for four an epoch; 0 is only at the end."),
    "target_accuracy": OptionKind(float, lambda v: 0 <= v <= 1, "a number in [0, 1]", "Stop there; 0 is off."),
    "softsync": _whole(1, "softsync: contributions of a step.  [default: 1]"),
    "staleness": _whole(0, "ssp: steps that a worker may be ahead.  [default: 3]"),
    "period": _whole(1, "averaging, easgd, hogwild: steps between two exchanges.  [default: 8; hogwild 64]"),
    "average_momentum": OptionKind(
        bool, lambda v: True, "true or false", "averaging: average momentum too.  [default: on]"
    ),
    "local_from": _from_zero("averaging: epochs with a period of 1 first.  [default: 0]"),
    "outer_lr": _above_zero("averaging: rate of the outer step.  [default: 1]"),
    "outer_momentum": OptionKind(
        float, lambda v: 0 <= v < 1, "a number in [0, 1)", "averaging: outer Nesterov.  [default: 0]"
    ),
    "easgd_order": _one_of(("sync", "round-robin", "async", "hogwild"), "easgd: who pulls when.  [default: sync]"),
    "rho": _above_zero("easgd: elastic force.  [default: 0.9 / (lr * workers)]"),
    "accumulate": _whole(1, "allreduce: steps whose gradients make one update.  [default: 1]"),
    "peers": OptionKind(
        str,
        re.compile(r"all|ring|pairs|random:([2-9]|[1-9]\d{1,4})").fullmatch,
        "all, ring, random:D with D of 2 or more, or pairs",
        "decentralized: who sends to whom: all, ring, random:D, pairs.  [default: all]",
    ),
    "window": _whole(1, "decentralized: updates that a worker may be ahead of others.  [default: 64]"),
    "compress": _one_of(
        ("none", "threshold", "onebit", "topk"), "Codec of updates.  [default: none; decentralized threshold]"
    ),
    "density": OptionKind(
        float, lambda v: 0 < v <= 1, "a number above 0, at most 1", "Share of an update that is sent.  [default: 0.001]"
    ),
    "compress_warmup": _from_zero("Epochs of whole updates before compressed ones."),
    "compress_sync": _whole(0, "Steps after which all that is left over is sent; 0 is never."),
    "staleness_lr": _one_of(("none", "inverse", "exponential"), "Scale of stale gradients' steps."),
    "record": OptionKind(Path, lambda v: v.name != "", "a file's path", "Write the order of pushes and releases here."),
    "replay": OptionKind(Path, lambda v: v.name != "", "a file's path", "Follow the order in this file."),
    "device": _one_of(("cpu", "cuda"), "What workers compute on; cuda: a GPU each, by local rank."),
    "server_device": _one_of(("cpu", "cuda"), "Where servers keep state and take steps."),
    "data_device": _one_of(("auto", "cpu", "cuda"), "Where the data lies; auto: on the GPU if it fits."),
    "inject": OptionKind(str, lambda v: True, "text", _INJECT, ("SPEC",)),
    "log": OptionKind(Path, lambda v: v.name != "", "a file's path", "Write JSON lines to this file."),
    "save": OptionKind(
        Path, lambda v: v.suffix in FORMATS, f"a file's path that ends in {' or '.join(FORMATS)}", _SAVE
    ),
    "checkpoint_dir": OptionKind(
        Path, lambda v: v.name != "", "a folder's path", "Checkpoints go here; all ranks see it.", ("DIR",)
    ),
    "checkpoint_every": _whole(0, "Optimizer steps between checkpoints; 0 is at signals only."),
    "checkpoint_minutes": _from_zero("Minutes between checkpoints; 0 is off."),
    "checkpoint_keep": _whole(1, "How many of the newest stay, and the best."),
    "resume": OptionKind(bool, lambda v: True, "true or false", "Go on from the newest complete checkpoint."),
    "save_signal": OptionKind(
        str,
        requests.known,
        "a signal's name: USR2, TERM, HUP or any other but USR1, INT, KILL, STOP",
        "Signal to save and stop, exit code 85: USR2, TERM, HUP, any but USR1 (saves and goes on), INT, KILL, STOP.",
        ("NAME",),
    ),
    "log_dir": OptionKind(
        Path, lambda v: v.name != "", "a folder's path", "Append what each rank prints to a file here.", ("DIR",)
    ),
    "placement": _one_of(
        ("auto", "dedicated", "spread", "colocated"),
        "Ranks that serve: the first, one a node, or evenly among the workers; auto is spread on several nodes.",
    ),
}
_METAVARS = {int: "N", float: "X", Path: "FILE", str: "NAME|PATH"}


def flag(name: str) -> str:
    """Returns the command-line form of a field's name: `batch_size` is `--batch-size`."""
    return "--" + name.replace("_", "-")


def train_options(function: F) -> F:
    """Decorates a click command with an option for each field of `TrainConfig`; None where unset."""
    defaults = TrainConfig()
    for name in reversed(NAMES):
        kind = KINDS[name]
        default = getattr(defaults, name)
        text = kind.help
        if default not in (None, ""):
            shown = str(default).lower() if kind.type is bool else default
            text = f"{text}  [default: {shown}]"
        if kind.type is bool:
            decorate = click.option(f"{flag(name)}/--no-{flag(name)[2:]}", name, default=None, help=text)
        else:
            metavar = "|".join(kind.names) or _METAVARS[kind.type]
            # The values are checked by `convert`, in the same words for flags and files.
            several: dict[str, Any] = {"multiple": True, "callback": _joined} if name == "inject" else {}
            decorate = click.option(flag(name), name, type=str, default=None, metavar=metavar, help=text, **several)
        function = decorate(function)
    return function


def _joined(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> str | None:
    """A flag that may be repeated, as one text."""
    return ",".join(values) if values else None


def convert(name: str, value: object, where: str) -> Value:
    """Checks one option's value and gives it its type.

    Args:
        name: the field of `TrainConfig`.
        value: text from a flag, or a TOML value.
        where: `--lr` or `lr in run.toml`, for the message.

    Raises:
        UsageError: not of that type, or out of range.
    """
    kind = KINDS[name]
    result = _typed(kind.type, value)
    if result is None or not kind.good(result):
        shown = repr(value) if isinstance(value, str) else value
        near = difflib.get_close_matches(str(value), kind.names, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"{where}: expected {kind.words}, got {shown}{hint}")
    return result


def _typed(kind: type, value: object) -> Value | None:
    """Makes `value` a `kind`, None where it is none. A flag's text is parsed; a file's values have types."""
    if kind is Path:
        return Path(value).expanduser() if isinstance(value, str) and value else None
    if kind in (int, float) and isinstance(value, str):
        return None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value if type(value) is kind else None


def _parsed(name: str, text: object) -> object:
    """Reads a flag's text as the number it should be; what is none stays text, for the message."""
    if isinstance(text, str) and KINDS[name].type in (int, float):
        try:
            return KINDS[name].type(text)
        except ValueError:
            return text
    return text


def read_file(path: str) -> dict[str, Value]:
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
        table = tomllib.loads(text.decode())
    except (ValueError, RecursionError) as error:  # TOMLDecodeError and bad UTF-8 are ValueErrors
        raise UsageError(f"--config {path}: not TOML: {error}") from None
    values = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in KINDS:
            near = difflib.get_close_matches(name, KINDS, n=1)
            hint = f"did you mean {near[0].replace('_', '-')}?" if near else "see psgd train --help"
            raise UsageError(f"--config {path}: unknown option {key!r}; {hint}")
        if name in values:
            raise UsageError(f"--config {path}: {key!r} is there twice, with - and with _")
        values[name] = convert(name, value, f"{key} in {path}")
    return values


def build(flags: Mapping[str, object], config: str | None = None) -> TrainConfig:
    """Makes the configuration: defaults, then the file's values, then flags. Opens nothing but the file.

    Args:
        flags: by field name, as click gives them; None is unset.
        config: the TOML file, or None.

    Raises:
        UsageError: one wrong option, named with what was expected.
    """
    values = read_file(config) if config is not None else {}
    for name, text in flags.items():
        if text is not None:
            values[name] = convert(name, _parsed(name, text), flag(name))
    result = replace(TrainConfig(), **values)
    _check_checkpoints(values)
    _check_strategy(result)
    return result


def _check_strategy(config: TrainConfig) -> None:
    """Refuses options that the strategy does not have, and servers where it has none."""
    known = STRATEGY_OPTIONS.get(config.strategy, ())
    for name in sorted({name for names in STRATEGY_OPTIONS.values() for name in names}):
        if getattr(config, name) is not None and name not in known:
            able = " or ".join(strategy for strategy, names in STRATEGY_OPTIONS.items() if name in names)
            raise UsageError(f"{flag(name)}: strategy {config.strategy} does not take it, expected --strategy {able}")
    if config.strategy in SERVERLESS:
        if config.servers:
            raise UsageError(f"--servers {config.servers}: strategy {config.strategy} has none, leave it away")
        if config.server_device != "cpu":
            raise UsageError(f"--server-device: strategy {config.strategy} has no servers, leave it away")
        if config.staleness_lr != "none" or config.record or config.replay:
            raise UsageError(
                f"--staleness-lr, --record, --replay: strategy {config.strategy} has no servers to do that"
            )
    elif config.servers == 0 and (config.workers or 1) != 1:
        raise UsageError(f"--servers 0: expected --workers 1 with it, got {config.workers}")
    if config.placement != "auto" and (config.strategy in SERVERLESS or config.servers == 0):
        raise UsageError(f"--placement {config.placement}: no servers are there to be placed, leave it away")
    if config.data_device != "auto" and config.device != "cuda":
        raise UsageError(f"--data-device {config.data_device}: expected --device cuda with it")
    _check_compression(config)
    if config.target_accuracy and (config.record or config.replay):
        raise UsageError(
            "--target-accuracy: when it is reached depends on time, leave it away with --record and --replay"
        )


def _check_checkpoints(values: Mapping[str, Value]) -> None:
    """Refuses the options of checkpoints, of those that were given, where there are none."""
    names = ("checkpoint_every", "checkpoint_minutes", "checkpoint_keep", "resume", "save_signal")
    given = [flag(name) for name in names if values.get(name)]
    if given and "checkpoint_dir" not in values:
        raise UsageError(f"{', '.join(given)}: expected --checkpoint-dir with {'them' if given[1:] else 'it'}")


def _check_compression(config: TrainConfig) -> None:
    """Refuses compression where nothing can be made small, and its options without it."""
    on = config.compress not in (None, "none")
    if on and config.strategy not in COMPRESSIBLE:
        able = ", ".join(COMPRESSIBLE)
        raise UsageError(f"--compress {config.compress}: strategy {config.strategy} sends parameters, expected {able}")
    if on and config.peers == "pairs":
        raise UsageError(f"--compress {config.compress}: --peers pairs sends parameters, leave it away")
    if config.strategy == "decentralized" and config.peers != "pairs" and config.optimizer not in ("sgd", "momentum"):
        raise UsageError(f"--strategy decentralized: expected --optimizer sgd or momentum, got {config.optimizer}")
    if on and config.optimizer not in ("sgd", "momentum"):
        raise UsageError(f"--compress {config.compress}: expected --optimizer sgd or momentum, got {config.optimizer}")
    on = config.compress is not None or (config.strategy == "decentralized" and config.peers != "pairs")
    for name in ("density", "compress_warmup", "compress_sync"):
        if getattr(config, name) and not on:
            raise UsageError(f"{flag(name)}: expected --compress threshold, onebit or topk with it")


def check_files(config: TrainConfig) -> None:
    """Checks that log, record and weights can be written, without creating them, and that the replay is there.

    Raises:
        UsageError: a folder is missing or not writable, a path is a folder itself, or no file is there.
    """
    for name in ("log", "record"):
        path: Path | None = getattr(config, name)
        if path is None:
            continue
        folder = path.parent
        if not folder.is_dir():
            raise UsageError(f"--{name} {path}: expected a file in an existing folder, {folder} is none")
        if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
            raise UsageError(f"--{name} {path}: expected a file that can be written, got no permission or a folder")
    if config.save is not None:
        export.check(config.save, "--save")
    if config.replay is not None and not config.replay.is_file():
        raise UsageError(f"--replay {config.replay}: expected a file that --record wrote, there is none")


def check_here(config: TrainConfig) -> None:
    """Checks on this host what the options point at: dataset, model on that dataset, log. Reads headers.

    Raises:
        UsageError: one message; a `DataError` for the dataset.
    """
    check_files(config)
    from psgd.data import load

    dataset = load(config.dataset)
    if config.model in ("cnn", "resmlp"):
        from psgd.nn.models import build as build_model

        build_model(config.model, dataset.sample_shape, dataset.classes, hidden=config.hidden)
