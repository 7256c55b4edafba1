"""Refuses a run that cannot fit into this node's memory or its GPUs', with the table of its estimate."""

import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from psgd.config import TrainConfig
from psgd.kernels.errors import UsageError
from psgd.launch.memory import cards, limits
from psgd.nn.catalog import MODELS
from psgd.user import reference

if TYPE_CHECKING:
    from psgd.data import Dataset
    from psgd.estimate.rank_memory import Estimate
    from psgd.nn.model import Model

    Build = Callable[[Dataset], Model]

ANYWAY = "--try-anyway"
_PLENTY = 200
"""More vectors of a model's parameters than any strategy has, and more buffers than a model has for each layer."""


def check(config: TrainConfig, servers: int, workers: int, here: int, build: "Build") -> None:
    """Refuses a run that needs more than there is. Reads the dataset's headers; allocates nothing and starts nothing.

    A run of the user's own file is not looked at: that would have to be run. Only what is surely too much is refused:
    the arrays count, Python and MPI do not.

    Args:
        config: the run.
        servers: how many there are, each of `config.parts` ranks.
        workers: likewise.
        here: ranks on this node.
        build: makes the run's model, on no vector, of its dataset.

    Raises:
        UsageError: it cannot fit; the table is on stderr then.
    """
    if reference.is_reference(config.model) or reference.is_reference(config.dataset):
        return
    from psgd.data import load

    dataset, there = load(config.dataset, config.context), limits.of_node()
    on_gpu = "cuda" in (config.device, config.server_device)
    if not on_gpu and (there is None or _tiny(config, dataset) * here < there.nbytes):
        return
    from psgd.estimate import whole_run

    keep_mpi_asleep()
    run = whole_run.of_model(config, build(dataset), servers, workers, timed=False)
    counted = f"{here} ranks" if here > 1 else "1 rank"
    each = there and limits.Limit(there.nbytes // here, f"{there.whose} {_of(there.nbytes)} for {counted}")
    if there is not None and each is not None and needed(run.ranks, here) > there.nbytes:
        _refuse(run, each, "cpu")
    if on_gpu and (gpus := cards.memory()):
        all_of_them = (servers + workers) * config.parts
        ranks = sum(one.ranks for one in run.ranks if one.device == "cuda") * here / all_of_them
        shared = max(1, math.ceil(ranks / len(gpus)))
        whose = "of its GPU" if shared == 1 else f"of a GPU that {shared} ranks share"
        _refuse(run, limits.Limit(min(gpus) // shared, whose), "cuda")


def needed(ranks: Sequence["Estimate"], here: int) -> int:
    """Bytes that so many of the ranks need on the host: those that need the least, as nothing says which are here."""
    from psgd.estimate.rank_memory import ON_HOST

    offloaded = any(one.role == ON_HOST for one in ranks)
    once = [one for one in ranks if not offloaded or one.role != "worker"]  # a worker by its part on the host
    totals = sorted(one.total if one.device == "cpu" else 0 for one in once for _ in range(one.ranks))
    return sum(totals[:here])


def _refuse(run: Any, limit: limits.Limit, device: str) -> None:
    """Raises where a rank needs more than its share of the device; prints the table."""
    from psgd.estimate import table

    said = run.verdict(limit.nbytes, device)
    if not said:
        return
    print("\n".join(table.lines(run.ranks)), file=sys.stderr)
    raise UsageError(f"this run cannot fit: {'; '.join(said)} ({limit.whose}); {ANYWAY} starts it all the same")


def _of(nbytes: int) -> str:
    from psgd.estimate.table import text

    return text(nbytes)


def _tiny(config: TrainConfig, dataset: "Dataset") -> int:
    """A generous bound for a rank of a model of two layers at most, without loading what builds models."""
    if dataset.tokens or not MODELS[config.model].any_samples:
        return 1 << 62  # it was built already, for its shapes
    features = 1
    for extent in dataset.sample_shape:
        features *= extent
    widest = features + config.hidden + dataset.classes
    return _PLENTY * 4 * widest * (widest // 4 + max(config.batch_size, 2000))


def keep_mpi_asleep() -> None:
    """What cuts layers over ranks loads MPI, which starts with its import otherwise."""
    import mpi4py

    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
