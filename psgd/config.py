"""What a training run was asked to do: each option with its type, range, default and help, stated here or in its room.

The command line, a TOML file, the library and tests all read it from this one dataclass.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from psgd.checkpoint import options as checkpoint
from psgd.compression import catalog as compression
from psgd.nn.catalog import MODELS
from psgd.nn.recompute import segments
from psgd.optim import catalog as optim
from psgd.parallel import options as parallel
from psgd.parallel.axes import parse, ranks_of_a_copy
from psgd.runtime import choices
from psgd.runtime.jsonable import clean
from psgd.runtime.option import Option, above_zero, below_one, from_zero, one_of, path, switch, whole
from psgd.runtime.ulfm import options as ulfm
from psgd.strategies import catalog as strategies
from psgd.user import reference

OF_THE_RUN = ("dataset", "model", "hidden", "batch_size", "seed")
"""Options that a run shares with the one whose checkpoint it resumes, beside those that `psgd.connect` compares."""
_MODELS = ", ".join(MODELS)
_HIDDEN = ", ".join(name for name, model in MODELS.items() if model.hidden)
_INJECT = (
    "Injected faults, separated by commas or repeated: slow:W:F, slow:rotating:F:SHARE, compute:S, kill:RANK@STEP, "
    "stop:RANK@STEP:S, raise:RANK@STEP, nan:RANK@STEP; RANK is a worker's index, or s0 for server 0."
)
_CODECS = "".join(f"; {name} {each.codec}" for name, each in strategies.STRATEGIES.items() if each.codec)


@dataclass(frozen=True)
class TrainConfig:
    """Options of `psgd train`. Each field is the option of the same name, `_` for `-`.

    Attributes:
        own: the strategy's own options that were given, by name (`psgd.strategies.catalog`).
    """

    dataset: str = Option(
        str,
        "digits",
        f"digits, fashion-mnist, genesis, a path to IDX, .npz, .npy or .txt files, or your own {reference.FORM}.",
        lambda text: text and not text.endswith(".py"),
        f"a name, a path or {reference.FORM}",
        metavar=f"NAME|PATH|{reference.FORM}",
    ).field()
    check_data: bool = switch(False, "Compare checksums of the data on all ranks first.").field()
    model: str = Option(
        str,
        "mlp",
        f"The network to train: {_MODELS}, or what your own {reference.FORM} returns.",
        lambda text: text in MODELS or reference.is_reference(text),
        f"one of {_MODELS} or {reference.FORM}",
        MODELS,
        metavar=f"NAME|{reference.FORM}",
    ).field()
    hidden: int = whole(1, 256, f"{_HIDDEN}: number of hidden units.").field()
    layers: int = whole(1, 4, "gpt: number of layers, each with attention and a hidden layer.").field()
    width: int = whole(1, 128, "gpt: features of a token.").field()
    heads: int = whole(1, 4, "gpt: heads of attention, a divisor of the width.").field()
    dropout: float = below_one(0.0, "lecture-cnn: share of hidden units that a step leaves out.").field()
    context: int = whole(1, 128, "Text: number of tokens of a sample.").field()
    recompute: str | None = Option(
        str,
        None,
        "Compute activations again in backward: of all layers, of every N together, or of as few as fit BYTES (500MB).",
        segments.is_wish,
        "all, a number of layers, or bytes as 500MB",
        metavar="all|N|BYTES",
    ).field()
    strategy: str = one_of(
        strategies.STRATEGIES, "sync", "When gradients are applied, and when workers continue."
    ).field()
    workers: int | None = whole(
        1, None, "Number of ranks that compute gradients.", shown="2; under mpirun or srun, the other ranks"
    ).field()
    servers: int | None = whole(
        0,
        None,
        "Number of ranks that hold the parameters.",
        shown="1; 0 on a single rank, and for strategies without",
    ).field()
    mesh: str | None = parallel.MESH.field()
    cut: str | None = parallel.CUT.field()
    pipe_schedule: str | None = parallel.PIPE_SCHEDULE.field()
    microbatches: int | None = parallel.MICROBATCHES.field()
    shard: int | None = parallel.SHARD.field()
    epochs: int = whole(1, 10, "Passes over the training set.").field()
    batch_size: int = whole(1, 32, "Samples per worker and step.").field()
    lr: float = optim.LR.field()
    optimizer: str = optim.OPTIMIZER.field()
    momentum: float = optim.MOMENTUM.field()
    weight_decay: float = optim.WEIGHT_DECAY.field()
    schedule: str = optim.SCHEDULE.field()
    warmup_epochs: float = from_zero(0.0, "Epochs over which the learning rate rises from 0.").field()
    step_epochs: float = above_zero(10.0, "step schedule: epochs between two changes.").field()
    step_factor: float = above_zero(0.1, "step schedule: factor of each change.").field()
    scale_lr: bool = switch(False, "Multiply the learning rate by the number of workers.").field()
    clip_norm: float = optim.CLIP_NORM.field()
    reduction: str = optim.REDUCTION.field()
    seed: int = Option(
        int, 0, "Seed of all random numbers.", lambda seed: 0 <= seed < 2**63, "a whole number from 0 to 2^63 - 1"
    ).field()
    eval_every: float = from_zero(1.0, "Epochs between evaluations: 0.25 is four per epoch, 0 only at the end.").field()
    target_accuracy: float = Option(
        float,
        0.0,
        "Stop when the test accuracy reaches this; 0 is off.",
        lambda share: 0 <= share <= 1,
        "a number in [0, 1]",
    ).field()
    early_stop: int = whole(
        0, 0, "Stop after this many evaluations in a row without a better test accuracy; 0 is off."
    ).field()
    own: Mapping[str, Any] = field(default_factory=dict)
    compress: str | None = compression.compress("none" + _CODECS).field()
    density: float | None = compression.DENSITY.unless_given().field()
    compress_warmup: float = compression.WARMUP.field()
    compress_sync: int = compression.SYNC.field()
    staleness_lr: str = optim.STALENESS_LR.field()
    on_nan: str = optim.ON_NAN.field()
    record: Path | None = path("Write the order of pushes and releases to this file.").field()
    replay: Path | None = path("Repeat the run that --record wrote to this file.").field()
    device: str = choices.DEVICE.field()
    server_device: str = choices.SERVER_DEVICE.field()
    data_device: str = choices.DATA_DEVICE.field()
    offload: str | None = choices.OFFLOAD.field()
    offload_staleness: int = choices.OFFLOAD_STALENESS.field()
    inject: str = Option(str, "", _INJECT, lambda text: True, "text", metavar="SPEC").field()
    drop_straggler_after: float | None = above_zero(
        None,
        "Kill a worker for which others have waited this many seconds, where the run goes on without it.",
        shown="off",
    ).field()
    survive: bool = switch(True, "Go on when workers die, where the MPI and the strategy can.").field()
    log: Path | None = path("Write JSON lines to this file.").field()
    trace: Path | None = path("Write what each rank did when to this file, a Chrome trace; .gz compresses it.").field()
    tensorboard: Path | None = path(
        "Write event files for TensorBoard to this folder.", "a folder's path", "DIR"
    ).field()
    save: Path | None = checkpoint.SAVE.field()
    checkpoint_dir: Path | None = checkpoint.DIRECTORY.field()
    checkpoint_every: int = checkpoint.EVERY.field()
    checkpoint_minutes: float = checkpoint.MINUTES.field()
    checkpoint_keep: int = checkpoint.KEEP.field()
    keep_best: bool = checkpoint.KEEP_BEST.field()
    resume: bool = checkpoint.RESUME.field()
    save_signal: str = checkpoint.SAVE_SIGNAL.field()
    replicas: int = ulfm.REPLICAS.field()
    spares: int = ulfm.SPARES.field()
    grow: str | None = ulfm.GROW.field()
    log_dir: Path | None = path("Append each rank's output to a file in this folder.", "a folder's path", "DIR").field()
    placement: str = choices.PLACEMENT.field()

    @property
    def axes(self) -> dict[str, int]:
        """Ranks along each axis that `mesh` names."""
        return {} if self.mesh is None else parse(self.mesh)

    @property
    def parts(self) -> int:
        """How many ranks hold one copy of the model together: each worker and each server is so many."""
        return ranks_of_a_copy(self.axes)

    @property
    def in_pieces(self) -> bool:
        """Whether the model is trained as a pipeline or by tensor, even if by one rank."""
        return self.mesh is not None and (self.parts > 1 or self.microbatches is not None)

    def of_the_run(self) -> dict[str, Any]:
        """What the run shares with one that resumes it, as JSON values; of a user's file the name, not the folder."""
        names = *OF_THE_RUN, *self.of_the_model()
        values = {name: clean(getattr(self, name)) for name in names}
        if self.model in MODELS and MODELS[self.model].tokens:
            values["context"] = self.context
        return values | {name: reference.plain(values[name]) for name in ("dataset", "model")}

    def of_the_model(self) -> dict[str, int | float]:
        """The options that its model has beside `hidden`."""
        entry = MODELS.get(self.model)
        return {name: getattr(self, name) for name in entry.options} if entry is not None else {}

    def flat(self) -> dict[str, Any]:
        """All options by name; the own ones of any strategy are None where they were not given."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "own"}
        return values | {name: self.own.get(name) for name in strategies.own_options()}


def options() -> dict[str, Option]:
    """All options of `psgd train` by name, in the order of its help."""
    found: dict[str, Option] = {}
    for each in fields(TrainConfig):
        found |= strategies.own_options() if each.name == "own" else {each.name: each.metadata["option"]}
    return found


def configure(**values: Any) -> TrainConfig:
    """The configuration with these options, checked before one by one; the others have their defaults."""
    own = strategies.own_options()
    general = {name: value for name, value in values.items() if name not in own}
    return TrainConfig(**general, own={name: value for name, value in values.items() if name in own})
