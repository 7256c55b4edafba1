"""Options of models in pieces. Imports no MPI."""

from collections.abc import Callable
from typing import Any

from psgd.kernels.errors import UsageError
from psgd.parallel.axes import parse
from psgd.parallel.schedules.catalog import SCHEDULES
from psgd.runtime.option import Option, one_of, whole

MICROBATCHES_A_STAGE = 4
AUTO = "auto"


def _reads(function: Callable[[str], Any]) -> Callable[[str], bool]:
    """Whether a function takes a text."""

    def allowed(text: str) -> bool:
        try:
            function(text)
        except (UsageError, ValueError):
            return False
        return True

    return allowed


def microbatches_of(schedule: str, stages: int) -> int:
    """Into how many parts a batch is cut, where nothing else is asked for."""
    if stages == 1:
        return 1
    entry = SCHEDULES[schedule]
    return MICROBATCHES_A_STAGE * stages if entry.flushes or entry.least_every(stages) > 1 else 1


def layers(text: str) -> tuple[int, ...] | None:
    """Reads `3,5`: where stages begin; None for `auto`. Raises ValueError for anything else."""
    return None if text == AUTO else tuple(int(part) for part in text.split(","))


MESH = Option(
    str,
    None,
    "Ranks along each axis: pipe, tensor and data; data is the number of workers, each a copy of the model.",
    _reads(parse),
    "AXIS=RANKS,... as pipe=2,tensor=2,data=2",
    metavar="AXIS=N,...",
)
CUT = Option(
    str,
    None,
    "Layers with which the stages of a pipeline begin, but for the first: 3,5 makes three; auto measures all layers.",
    _reads(layers),
    f"layers, as 3,5, or {AUTO}",
    metavar="LAYERS",
    shown=AUTO,
)
PIPE_SCHEDULE = one_of(
    [name for name, entry in SCHEDULES.items() if entry.trains],
    None,
    "Order in which a pipeline's stages compute.",
    shown="1f1b",
)
MICROBATCHES = whole(
    1,
    None,
    "Parts of a batch that go through a pipeline one after another.",
    shown=f"{MICROBATCHES_A_STAGE} for each stage; 1 with pipedream",
)
SHARD = Option(
    int,
    None,
    "allreduce: each worker keeps a part only, of the optimizer's state (1), also of gradients (2), also of parameters "
    "(3).",
    lambda stage: 1 <= stage <= 3,
    "1, 2 or 3",
    metavar="1|2|3",
)
