"""What a caller asks of `psgd.connect`, and the checks of one rank's arguments: they do not communicate."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from psgd.checkpoint import options as checkpoint
from psgd.checkpoint.pieces.model_part import ModelPart
from psgd.checkpoint.requests import CheckpointRequest
from psgd.checkpoint.resume import Plan
from psgd.compression import catalog as compression
from psgd.compression import options as compression_options
from psgd.compression.options import Compression
from psgd.connection import RunOptions
from psgd.connector import in_pieces, offload, sharding
from psgd.kernels.array import array_module
from psgd.kernels.errors import UsageError
from psgd.metrics.callback import Callback
from psgd.metrics.run_metrics import RunMetrics
from psgd.nn.layout import Layout
from psgd.optim import catalog as optim
from psgd.optim import rules, staleness
from psgd.optim.host_updates import HostUpdates
from psgd.optim.optimizer import OptimizerOptions
from psgd.optim.rules import Rule
from psgd.optim.schedules import Schedule, constant
from psgd.runtime import mesh
from psgd.runtime.device_vectors import on_device
from psgd.runtime.option import whole_number
from psgd.server.wire import INLINE_BYTES
from psgd.strategies import catalog as strategies
from psgd.strategies import requirements
from psgd.strategies.sharded.sharded_worker import Shard
from psgd.worker.bound_model import BoundModel
from psgd.worker.context import Alone

Vector = NDArray[np.floating]


@dataclass(frozen=True)
class ConnectOptions:
    """The arguments of `psgd.connect` behind `params`, as they were given: see there."""

    strategy: str
    servers: int | None
    placement: str | Sequence[int]
    lr: float | Schedule
    rule: str | Rule
    momentum: float
    weight_decay: float
    clip_norm: float
    reduction: str
    staleness_lr: str
    on_nan: str
    compress: str | None
    density: float | None
    compress_warmup: float
    compress_sync: int
    record: str | Path | None
    replay: str | Path | None
    metrics: RunMetrics | None
    segment_bytes: int | None
    checkpoint_dir: str | Path | None
    checkpoint_every: int
    checkpoint_minutes: float
    checkpoint_keep: int
    resume: bool
    run: Mapping[str, Any] | None
    layout: Layout | None
    checkpoint_request: CheckpointRequest | None
    options: dict[str, Any]
    part: ModelPart | None = None
    callbacks: Sequence[Callback] = ()
    trace: str | Path | None = None
    shard: Shard = 0
    offload: str | HostUpdates | None = None

    @property
    def serverless(self) -> bool:
        """Whether the strategy, a known one, has no servers."""
        return is_serverless(self.strategy)


def is_serverless(strategy: str) -> bool:
    """Whether a strategy has no servers.

    Raises:
        UsageError: there is no such strategy.
    """
    return not strategies.find(strategy).servers


def works_on_device(strategy: str) -> bool:
    """Whether a strategy, a known one, works on parameters on a GPU where they are, if nothing is compressed."""
    return strategies.find(strategy).on_device


@dataclass(frozen=True)
class CheckedOptions:
    """The same, checked.

    Attributes:
        servers, workers: how many there are.
        run: what the connection does.
        plan: the checkpoints, not prepared.
    """

    servers: int
    workers: int
    run: RunOptions
    plan: Plan


def check(given: ConnectOptions, vector: Vector, size: int) -> CheckedOptions:
    """Checks the arguments of one of `size` ranks.

    Raises:
        UsageError: names the argument, what was expected, and what was given.
    """
    plan = checked_plan(given)
    servers = strategies.default_servers(given.strategy, size)
    if given.servers is not None:
        servers = whole_number("servers", given.servers)
    requirements.check(given.strategy, vars(given), given.options)
    if size == 1:
        requirements.check_alone(vars(given))
    mesh.check_servers(servers, size, peers=given.serverless)
    workers = size - servers
    schedule = given.lr if callable(given.lr) else constant(optim.LR.check("lr", given.lr))
    if type(given.lr).__module__.startswith("torch.optim."):
        raise UsageError(
            f"lr: expected a number, or a function of the samples applied, got torch's {type(given.lr).__name__}: "
            "psgd.schedules has step, cosine and warmup, and psgd.torch.DistributedOptimizer keeps torch's own"
        )
    for samples in (0, 1e3, 1e6) if callable(given.lr) else ():
        optim.LR_OF_SCHEDULE.check(f"lr: the schedule at {samples:g} samples", schedule(samples))
    rule = given.rule
    if isinstance(rule, Rule):
        rule = rules.checked(rule)
    else:
        rule = rules.create(rule, given.momentum, given.weight_decay, "rule")
    others = ["comm", "params", *(field.name for field in fields(ConnectOptions))]
    strategy = strategies.create(given.strategy, workers, others, **given.options)
    if given.shard:
        strategy = sharding.chosen(vars(given), workers)
    if isinstance(strategy, Alone) and strategy.check is not None:
        strategy.check(schedule)
    accumulate = strategies.COMMON["accumulate"].check("accumulate", given.options.get("accumulate", 1))
    factor = float(workers) if optim.REDUCTION.check("reduction", given.reduction) == "sum" else 1.0
    optimizer = OptimizerOptions(rule, schedule, optim.CLIP_NORM.check("clip_norm", given.clip_norm), factor)
    scale = staleness.create(given.staleness_lr)
    codec = checked_compression(given, rule)
    _check_kinds(given)
    in_pieces.check(vars(given), sharding.whole_size(given.shard, vector.size))
    request = given.checkpoint_request
    if request is not None and not isinstance(request, CheckpointRequest):
        raise UsageError(f"checkpoint_request: expected a CheckpointRequest, got {type(request).__name__}")
    if given.metrics is not None and not isinstance(given.metrics, RunMetrics):
        raise UsageError(f"metrics: expected RunMetrics, got {type(given.metrics).__name__}")
    if given.metrics is not None and len(given.metrics.pushes) != workers:
        raise UsageError(f"metrics: expected RunMetrics for {workers} workers, got {len(given.metrics.pushes)}")
    segment = segment_bytes_for(vector.nbytes // max(1, servers), given.segment_bytes) // vector.itemsize
    near = codec is None and strategies.find(given.strategy).on_device
    alone = size == 1 and not isinstance(strategy, Alone)
    threads = offload.check(vars(given), on_device(vector), servers, alone)
    staged = on_device(vector) and (given.offload is not None or not (alone or near))
    on_nan = optim.ON_NAN.check("on_nan", given.on_nan)
    known = strategies.find(given.strategy)
    updates = known.codec is not None and known.sends_updates(given.options)
    leaves_out = size > 1 and (codec is not None or updates)
    run = RunOptions(strategy, optimizer, segment, scale, codec, staged, accumulate, on_nan, leaves_out, threads)
    return CheckedOptions(servers, workers, run, plan)


def _check_kinds(given: ConnectOptions) -> None:
    """Refuses a `layout` or a `run` of another kind."""
    if given.layout is not None and not isinstance(given.layout, Layout):
        raise UsageError(f"layout: expected a psgd.Layout, got {type(given.layout).__name__}")
    listed = isinstance(given.callbacks, Sequence)
    for each in given.callbacks if listed else (given.callbacks,):
        if not listed or not isinstance(each, Callback):
            got = f"the class {each.__name__}" if isinstance(each, type) else type(each).__name__
            raise UsageError(f"callbacks: expected a list of instances of psgd.Callback, got {got}")
    if given.run is not None and not isinstance(given.run, Mapping):
        raise UsageError(f"run: expected a dictionary of names and JSON values, got {given.run!r}")
    for name, value in (given.run or {}).items():
        try:
            if not isinstance(name, str):
                raise ValueError("a name is a text")
            json.dumps(value, allow_nan=False, sort_keys=True)
        except (TypeError, ValueError) as error:
            raise UsageError(f"run: expected names and JSON values, got {name!r}: {value!r} ({error})") from None


def checked_plan(given: ConnectOptions) -> Plan:
    """What is asked of checkpoints.

    Raises:
        UsageError: `checkpoint_dir` is no path, there is none for what was asked, or an option cannot be.
    """
    directory = given.checkpoint_dir
    folder = Path(directory) if isinstance(directory, (str, os.PathLike)) else None
    plan = Plan(
        folder, given.checkpoint_every, given.checkpoint_minutes, given.checkpoint_keep, given.resume, given.layout
    )
    plan.part = given.part if isinstance(given.part, ModelPart) else None
    plan.shares = bool(given.shard)
    if directory is not None and folder is None:
        raise UsageError(f"checkpoint_dir: expected a folder's path, got {directory!r}")
    names = ("checkpoint_every", "checkpoint_minutes", "checkpoint_keep", "resume")
    asked = {name: getattr(given, name) for name in names}
    needy = [name for name, value in asked.items() if value and (name, value) != ("checkpoint_keep", Plan.keep)]
    if directory is None:
        checkpoint.refuse(needy, "checkpoint_dir")
    plan.check()
    return plan


def checked_compression(given: ConnectOptions, rule: Rule) -> Compression | None:
    """How updates are compressed, or None.

    Raises:
        UsageError: an option that cannot be, or a rule that has no use for it.
    """
    codec = given.compress
    if codec is None:
        codec = strategies.find(given.strategy).default_codec(given.options)
    density = compression.DENSITY.default if given.density is None else given.density
    return compression_options.create(codec, density, given.compress_warmup, given.compress_sync, rule)


def segment_bytes_for(shard_bytes: int, asked: int | None) -> int:
    """Bytes of a segment: what was asked for (what travels inline is one), or by the size of the shard.

    Measured on two cores with both MPIs, 2026-11-28: within a tenth of the fastest from 256 KiB to 64 MiB.
    """
    if asked is not None:
        if whole_number("segment_bytes", asked) < 1:
            raise UsageError(f"segment_bytes: expected 1 or more, got {asked}")
        return max(INLINE_BYTES, asked)
    return 512 << 10 if shard_bytes < 8 << 20 else 1 << 20


def checked_vector(params: ArrayLike) -> tuple[Vector, str | None]:
    """The vector itself, and what is wrong with it (or None)."""
    try:
        array_module(params)
    except UsageError as error:
        fix = ": wrap it with psgd.torch.wrap(module)" if hasattr(params, "named_parameters") else ""
        if "jax" in sys.modules and isinstance(params, (dict, list, tuple, sys.modules["jax"].Array)):
            fix = ": wrap it with psgd.jax.wrap(params, loss_fn)"
        return np.empty(0, np.float32), f"params: {error}{fix}"
    vector = cast(Vector, params)
    if vector.dtype not in (np.float32, np.float64):
        return vector, f"params: expected float32 or float64, got {vector.dtype}: convert it with astype"
    if vector.ndim != 1 or not vector.flags.c_contiguous:
        return (
            vector,
            f"params: expected a contiguous 1-D array, got shape {vector.shape}: pass params.reshape(-1)",
        )
    if not on_device(vector) and not vector.flags.writeable:
        return vector, "params: expected a writable array, got a read-only one: pass a copy"
    return vector, None


def prepared(model: BoundModel) -> tuple[Vector, str | None]:
    """The model's vector, and what is wrong with the model (or None)."""
    try:
        return model.prepare(), None
    except UsageError as error:
        return np.empty(0, np.float32), str(error)
