"""What `psgd estimate` estimates: a model by name, or what a user's file makes."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from psgd.config import TrainConfig
from psgd.estimate import whole_run
from psgd.estimate.rank_memory import ACTIVATIONS, BATCH, EVALUATION, of_vectors
from psgd.estimate.standing_by import with_spares
from psgd.estimate.whole_run import RunMemory
from psgd.kernels.errors import UsageError
from psgd.launch import options
from psgd.nn.evaluation import EVALUATION_BATCH
from psgd.nn.model import Model
from psgd.runtime.ulfm.options import phases
from psgd.user import reference, script

if TYPE_CHECKING:
    from psgd.torch.fake_run import FakeModule
    from psgd.training.from_file import DataDescription

BUFFERS = "buffers and frozen parameters"


def of_config(config: TrainConfig, servers: int, workers: int) -> RunMemory:
    """Estimates a run with its spares; one that grows, with the workers of its end.

    Runs the user's files where the options name some; starts no MPI.

    Args:
        config: the run.
        servers: how many there are.
        workers: how many there are.

    Raises:
        UsageError: a model that cannot be, or cannot be estimated.
    """
    grows = phases(config.grow)
    return with_spares(_of_ranks(config, servers, grows[-1].workers if grows else workers))


def _of_ranks(config: TrainConfig, servers: int, workers: int) -> RunMemory:
    """Of those that act."""
    from psgd.training.from_file import DataDescription, read_dataset

    dataset, found = read_dataset(config), reference.find("--model", config.model)
    if found is None:
        return whole_run.of_model(config, options.model_of(config, dataset), servers, workers)
    description = DataDescription(dataset.sample_shape, dataset.classes, dataset.train.samples, bool(dataset.tokens))
    loaded = script.load(found)
    if not _has_torch():
        return _own(config, found.where, loaded.call(config.seed, description), servers, workers)
    return _module(config, loaded, description, servers, workers)


def _has_torch() -> bool:
    """Whether there can be a module of PyTorch."""
    import importlib.util

    return importlib.util.find_spec("torch") is not None


def _own(config: TrainConfig, where: str, made: object, servers: int, workers: int) -> RunMemory:
    """Of a model of psgd's layers."""
    if not isinstance(made, Model):
        raise UsageError(f"{where}: expected a torch.nn.Module or a psgd.nn.model.Model, got {type(made).__name__}")
    return whole_run.of_model(config, made, servers, workers)


def _module(
    config: TrainConfig, loaded: script.Script, data: "DataDescription", servers: int, workers: int
) -> RunMemory:
    """Of a module of PyTorch, or whatever else the function returns."""
    from psgd.torch.fake_run import FakeModule
    from psgd.training.torch_module import cross_entropy

    where = loaded.reference.where
    try:
        if config.in_pieces:
            from psgd.launch.view.estimated_stages import of_module

            made = of_module(config, lambda: loaded.call(config.seed, data), data.sample_shape, servers, workers)
            return made if isinstance(made, RunMemory) else _own(config, where, made, servers, workers)
        fake = FakeModule(lambda: loaded.call(config.seed, data), cross_entropy, data.sample_shape)
        if fake.module is None:
            return _own(config, where, fake.made, servers, workers)
        _check(config)
        shared = _shared(config, fake, workers)
        sample = fake.itemsize
        for extent in data.sample_shape:
            sample *= extent
        passes = {
            ACTIVATIONS: fake.step(config.batch_size),
            EVALUATION: fake.evaluation(EVALUATION_BATCH) + EVALUATION_BATCH * (sample + 8),
            BATCH: config.batch_size * (sample + 8),
            BUFFERS: fake.others,
        }
    except UsageError as error:
        raise UsageError(
            f"{where}: {str(error).removeprefix(f'{where}: ').removeprefix('psgd.torch.wrap: ')}"
        ) from None
    ranks = of_vectors(config, fake.layout.size * fake.itemsize, servers, workers, passes, shared=shared)
    return RunMemory(config, ranks, fake.layout.size, f"float{8 * fake.itemsize}", _from_two(fake.step))


def _check(config: TrainConfig) -> None:
    """Refuses what `psgd train` refuses with a module of PyTorch. Raises UsageError."""
    given = [
        ("--recompute", config.recompute),
        ("--offload", config.offload if config.offload == "parameters" else None),
        ("--offload-staleness", config.offload_staleness),
    ]
    for name, value in given:
        if value:
            raise UsageError(f"{name} {value}: expected a model of psgd's own layers with it, got a module of PyTorch")


def _shared(config: TrainConfig, fake: "FakeModule", workers: int) -> dict[str, int] | None:
    """A worker's vectors where all of them share a module's units; None where they do not."""
    if workers < 2 or config.shard not in (2, 3):
        return None
    from psgd.estimate import sharded_vectors
    from psgd.estimate.rank_memory import state_vectors
    from psgd.torch.sharded.module_units import plan

    assert fake.module is not None
    units = plan(fake.module, fake.slots, fake.layout.size)
    ranges, steps = [unit.part for unit in units.units], config.own.get("accumulate") or 1
    state = state_vectors(config)
    return sharded_vectors.rows(
        ranges, fake.itemsize, config.shard, workers, state, steps, units.alone(), gradients_too=True
    )


def _from_two(step: Callable[[int], int]) -> Callable[[int], int]:
    """Activations by samples; of one sample as of two, since layers that normalize a batch refuse one."""
    return lambda batch: step(max(batch, 2))
