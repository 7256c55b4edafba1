"""The short way for the commonest calls: blocking ones of plain arrays among the ranks of one node.

It means what the long way means (`verbs`, `programs`, `algorithms.shared`), without a Call and a generator: those cost
more than a small collective. What is not plain goes the long way, and so do all wrong arguments: the short way has no
errors of its own for them. Both publish the same line, so ranks that go different ways meet.
"""

from collections.abc import Callable
from typing import Any

from psgd.collectives.algorithms.intranode import METHODS
from psgd.collectives.dispatch.engine import Engine
from psgd.collectives.fastpath.movements import Allgather, Barrier, Bcast
from psgd.collectives.fastpath.reductions import Allreduce, ReduceScatterBlock
from psgd.collectives.dispatch.tuning import Limits


class Quick:
    """The verbs that have a short way.

    Each takes the verb's arguments, does the call and returns True, or does nothing and returns False where the call
    has to go the long way. Without an engine they always do the latter.

    Args:
        engine: of blocking calls.
        limits_of: gives the table of a verb.
    """

    def __init__(self, engine: Engine | None = None, limits_of: Callable[[str], Limits] | None = None) -> None:
        self.allreduce: Callable[[Any, Any, Any], bool] = _long
        self.reduce_scatter_block: Callable[[Any, Any, Any], bool] = _long
        self.allgather: Callable[[Any, Any], bool] = _long
        self.bcast: Callable[[Any, Any], bool] = _long
        self.barrier: Callable[[], bool] = _long
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


def _long(*_: Any) -> bool:
    return False
