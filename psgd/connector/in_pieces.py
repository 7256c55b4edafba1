"""What `psgd.connect` does where `params` are a part of a model: what goes with that, and what all parts do together.

Each part has ranks of its own, which split the samples, and servers of its own. All parts take the same steps, as long
as the order of the steps follows from the workers' clocks alone. Where it does not, the parts may be of different
versions: then nothing can be done at one version of the whole model, which clipping and checkpoints need.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mpi4py import MPI

from psgd.checkpoint.pieces.model_part import ModelPart
from psgd.kernels.errors import UsageError
from psgd.optim.optimizer import OptimizerOptions
from psgd.optim.whole_norm import WholeNorm
from psgd.runtime.agreement import agree, gather
from psgd.strategies import catalog
from psgd.worker.bound_model import BoundModel

IN_STEP = ("sync", "allreduce", "averaging", "easgd")
"""Strategies with which all parts are at the same step at any time; easgd with `easgd_order="sync"`."""


def in_step(strategy: str, easgd_order: str = "sync") -> bool:
    """Whether all parts of a model take the same steps in the same order with this strategy."""
    return strategy in IN_STEP and (strategy != "easgd" or easgd_order == "sync")


def everyone(comm: MPI.Intracomm, part: object, model: BoundModel | None) -> tuple[MPI.Intracomm, str | None]:
    """All ranks of the run, and what is wrong if ranks with the same part have other buffers. Collective, blocks.

    Args:
        comm: the ranks that have the same part, or all where there is none.
        part: as given to `psgd.connect`.
        model: of which this rank's parameters are.
    """
    if not isinstance(part, ModelPart):
        return comm, None
    mine = None if model is None else model.signature
    others = [each["model"] for each in gather(comm, {"model": mine})]
    if all(other == mine for other in others):
        return part.world, None
    other = next(each for each in others if each != mine)
    return part.world, f"params: expected the same model on all ranks with this part, got {mine} and {other}"


def check(given: Mapping[str, Any], size: int) -> None:
    """Refuses what does not go with a part of a model; does nothing where there is none.

    Args:
        given: the arguments of `psgd.connect` by name, the strategy's own under `options`.
        size: of the vector.

    Raises:
        UsageError: the first that does not fit.
    """
    part = given["part"]
    if part is None:
        return
    if not isinstance(part, ModelPart):
        raise UsageError(f"part: expected a ModelPart, got {type(part).__name__}")
    if size != part.layout.size:
        raise UsageError(f"part: expected params of the part's {part.layout.size} elements, got {size}")
    if given["record"] or given["replay"]:
        raise UsageError("record, replay: a model in pieces has an order in each of them; omit it")
    if given["on_nan"] == "skip":
        raise UsageError("on_nan=skip: a piece of a model cannot know of the others' gradients; use warn or stop")
    if in_step(given["strategy"], given["options"].get("easgd_order", "sync")):
        return
    strategy = given["strategy"]
    able = ", ".join(IN_STEP)
    if given["clip_norm"] and catalog.find(strategy).servers:
        raise UsageError(
            f"clip_norm: with strategy {strategy} the pieces of a model take steps at different times, and "
            f"have no common norm: expected one of {able}, or 0"
        )
    if given["checkpoint_dir"] is not None:
        raise UsageError(
            f"checkpoint_dir: with strategy {strategy} the pieces of a model are at different steps, and a "
            f"checkpoint of them would be of none: expected one of {able}"
        )


def optimizer(options: OptimizerOptions, part: ModelPart) -> OptimizerOptions:
    """Options that clip by the norm of the whole model. Collective over the replica where they clip, blocks."""
    if not options.clip_norm:
        return options
    return replace(options, squares=WholeNorm(part.replica, part.layout, part.whole, part.wait))


def agree_on_servers(part: ModelPart, serving: Sequence[int]) -> None:
    """Checks that in all parts the same ranks serve. Collective over all ranks, blocks.

    Raises:
        AgreedContractError: they do not: nodes differ, so `placement` chose differently.
    """
    agree(part.world, "psgd.connect", {"placement (name the ranks that serve)": list(serving)})
