"""What a training run was asked to do. The command line, a TOML file and tests all fill this one dataclass."""

from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class TrainConfig:
    """Options of `psgd train`. Each field is the option of the same name, `_` for `-`.

    Attributes:
        dataset: `digits`, `fashion-mnist`, or a path to IDX files, a `.npz`, or a folder of `.npy` files.
        model: `softmax`, `mlp` or `cnn`.
        hidden: units of the hidden layer of `mlp` and `cnn`.
        strategy: name in `psgd.strategies`.
        workers: ranks that compute gradients; None takes all ranks that are not servers (2 when psgd
            starts the ranks itself).
        servers: ranks that hold the parameters; None is 1, or 0 on a single rank.
        epochs: passes over the training set.
        batch_size: samples per worker and step.
        lr: learning rate before schedule and scaling.
        optimizer: `sgd`, `momentum`, `nesterov` or `adam`.
        momentum: factor for `momentum` and `nesterov`.
        weight_decay: L2 coefficient, applied once, on the server.
        schedule: `constant`, `step` or `cosine`, in global progress.
        warmup_epochs: linear warm-up from 0, in epochs of global progress.
        step_epochs: epochs between two steps of the `step` schedule.
        step_factor: what the rate is multiplied by at each step.
        scale_lr: multiply the rate by the number of workers (linear scaling).
        clip_norm: largest global gradient norm; 0 is off.
        reduction: `mean` divides by the samples; `sum` multiplies that mean by the number of workers.
        seed: of initialization, data order and everything random.
        eval_every: epochs between two evaluations on the test set; 0 evaluates only at the end.
        target_accuracy: stop once the test accuracy reaches it; 0 is off.
        softsync: contributions in a group of strategy `softsync`. Options that are a strategy's own are None where
            unset; they are then the strategy's default.
        staleness: steps that a worker may be ahead, strategy `ssp`.
        period: steps between two averagings (`averaging`, `hogwild` across nodes) or elastic pulls (`easgd`).
        average_momentum: average the optimizer's state too, strategy `averaging`.
        local_from: epochs of averaging at every step before `period` applies, strategy `averaging`.
        outer_lr: rate of the outer step, strategy `averaging`.
        outer_momentum: momentum of the outer step, strategy `averaging`.
        easgd_order: `sync`, `round-robin`, `async` or `hogwild`, strategy `easgd`.
        rho: elastic force, strategy `easgd`.
        accumulate: steps whose gradients are added before an update, strategy `allreduce`.
        peers: who sends updates to whom, strategy `decentralized`.
        window: own updates that others need not have applied yet, strategy `decentralized`.
        compress: `threshold`, `onebit`, `topk` or `none`; None: what the strategy does by itself.
        density: share of the elements that a compressed update sends.
        compress_warmup: epochs in which updates are sent whole first.
        compress_sync: steps after which all that was left over is sent; 0 is never.
        staleness_lr: what stale gradients are scaled by: `none`, `inverse` or `exponential`.
        record: file for the order of the run, or None.
        replay: file with the order that the run is to follow, or None.
        device: what workers compute on: `cpu` or `cuda`.
        server_device: what servers keep their optimizer's state and take steps on, likewise.
        data_device: where the training set lies: `cpu`, `cuda`, or `auto`, on the GPU where it fits.
        inject: trouble on purpose, as `psgd.runtime.faults` reads it; empty is none.
        log: JSON lines file, or None.
        save: file for the final parameters, `.npz` or `.pt`, or None.
        checkpoint_dir: folder for checkpoints, seen by all ranks, or None.
        checkpoint_every: optimizer steps from one checkpoint to the next; 0 is only when asked by a signal.
        checkpoint_minutes: the same in time; 0 is off.
        checkpoint_keep: how many of the newest stay, and the best.
        resume: go on from the newest complete checkpoint in `checkpoint_dir`.
        save_signal: name of the signal that saves and stops, exit code 85; SIGUSR1 saves and goes on.
        log_dir: folder for a file a rank with all that it prints, or None.
        placement: which ranks serve: `auto`, `dedicated`, `spread` or `colocated`, as `psgd.runtime.placement` says it.
    """

    dataset: str = "digits"
    model: str = "mlp"
    hidden: int = 256
    strategy: str = "sync"
    workers: int | None = None
    servers: int | None = None
    epochs: int = 10
    batch_size: int = 32
    lr: float = 0.1
    optimizer: str = "sgd"
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: str = "constant"
    warmup_epochs: float = 0.0
    step_epochs: float = 10.0
    step_factor: float = 0.1
    scale_lr: bool = False
    clip_norm: float = 0.0
    reduction: str = "mean"
    seed: int = 0
    eval_every: float = 1.0
    target_accuracy: float = 0.0
    softsync: int | None = None
    staleness: int | None = None
    period: int | None = None
    average_momentum: bool | None = None
    local_from: float | None = None
    outer_lr: float | None = None
    outer_momentum: float | None = None
    easgd_order: str | None = None
    rho: float | None = None
    accumulate: int | None = None
    peers: str | None = None
    window: int | None = None
    compress: str | None = None
    density: float | None = None
    compress_warmup: float = 0.0
    compress_sync: int = 0
    staleness_lr: str = "none"
    record: Path | None = None
    replay: Path | None = None
    device: str = "cpu"
    server_device: str = "cpu"
    data_device: str = "auto"
    inject: str = ""
    log: Path | None = None
    save: Path | None = None
    checkpoint_dir: Path | None = None
    checkpoint_every: int = 0
    checkpoint_minutes: float = 0.0
    checkpoint_keep: int = 3
    resume: bool = False
    save_signal: str = "USR2"
    log_dir: Path | None = None
    placement: str = "auto"


STRATEGY_OPTIONS = {
    "softsync": ("softsync",),
    "ssp": ("staleness",),
    "allreduce": ("accumulate",),
    "averaging": ("period", "average_momentum", "local_from", "outer_lr", "outer_momentum"),
    "easgd": ("period", "easgd_order", "rho"),
    "hogwild": ("period",),
    "decentralized": ("peers", "window"),
}
"""The options that only some strategies have."""
SERVERLESS = ("allreduce", "averaging", "easgd", "hogwild", "decentralized")
COMPRESSIBLE = ("sync", "async", "softsync", "ssp", "allreduce", "decentralized")


NAMES = tuple(field.name for field in fields(TrainConfig))
