"""The verbs that have a fast path, and when a call may take it."""

from collections.abc import Callable
from typing import Any

from psgd.collectives.algorithms.intranode import METHODS
from psgd.collectives.dispatch.engine import Engine
from psgd.collectives.dispatch.tuning import Limits
from psgd.collectives.fastpath.movements import Allgather, Barrier, Bcast
from psgd.collectives.fastpath.reductions import Allreduce, ReduceScatterBlock


class FastPath:
    """The verbs that have a fast path.

    Each takes the verb's arguments, does the call and returns True, or does nothing and returns False where the call
    must take the general path. Without an engine they always do the latter.

    Args:
        engine: of blocking calls.
        limits_of: gives the table of a verb.
    """

    def __init__(self, engine: Engine | None = None, limits_of: Callable[[str], Limits] | None = None) -> None:
        self.allreduce: Callable[[Any, Any, Any], bool] = _general
        self.reduce_scatter_block: Callable[[Any, Any, Any], bool] = _general
        self.allgather: Callable[[Any, Any], bool] = _general
        self.bcast: Callable[[Any, Any], bool] = _general
        self.barrier: Callable[[], bool] = _general
        if engine is None or limits_of is None or not engine.local or engine.checks:
            return

        def here(verb: str) -> bool:
            return all(name in METHODS for _, name in limits_of(verb))

        self.barrier = Barrier(engine)
        if here("Allreduce"):
            self.allreduce = Allreduce(engine, limits_of("Allreduce"))
        if here("Reduce_scatter_block"):
            self.reduce_scatter_block = ReduceScatterBlock(engine, limits_of("Reduce_scatter_block"))
        if here("Allgather"):
            self.allgather = Allgather(engine, limits_of("Allgather"))
        if here("Bcast"):
            self.bcast = Bcast(engine, limits_of("Bcast"))


def _general(*_: Any) -> bool:
    return False
