"""All algorithms: where each runs, which verbs it has, and the function that carries it out. Imports none of them.

To add one, write a file with a generator for each verb that it has, and add an entry here. Such a function names the
arguments that it wants, of those that `psgd.collectives.dispatch.dispatch` has:

    channel: messages between all ranks.        shared: the node's shared memory.
    send, recv, data: flat arrays; `data` is `recv`, which both holds and gets the values of a broadcast.
    op, root, parts: the reduction, the root, each rank's chunk as a range.
    segment: elements of a message in a pipeline.
    call, algorithm, comm, blocking, leaders, number, ranks: what lies beneath these.

The order is that of error messages and tables, and ranks compare positions in it: it is the same on all ranks.
"""

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

NODE = "shared memory"
MESSAGES = "messages"
NODES = "shared memory on each node"
MPI = "the MPI library"
_HERE = "psgd.collectives.algorithms"
_REDUCES = ("Allreduce", "Reduce_scatter", "Reduce_scatter_block", "Reduce")
_MOVES = ("Allgather", "Allgatherv", "Bcast")
_RING = {
    "Allreduce": "allreduce",
    "Reduce_scatter": "reduce_scatter",
    "Reduce_scatter_block": "reduce_scatter",
    "Allgather": "allgather",
    "Allgatherv": "allgather",
}


@dataclass(frozen=True)
class Algorithm:
    """One entry.

    Attributes:
        module: that has its functions.
        verbs: the name of the function for each verb that it has.
        needs: NODE, MESSAGES, NODES or MPI.
        use: what it is for.
        how: what it does.
    """

    module: str
    verbs: Mapping[str, str]
    needs: str
    use: str
    how: str


def _in(module: str, verbs: Mapping[str, str] | Iterable[str], needs: str, use: str, how: str) -> Algorithm:
    functions = verbs if isinstance(verbs, Mapping) else dict.fromkeys(verbs, "run")
    return Algorithm(f"{_HERE}.{module}", functions, needs, use, how)


ALGORITHMS = {
    "inline": _in(
        "intranode", (*_REDUCES, *_MOVES), NODE, "up to 64 KiB", "data behind each rank's descriptor; one exchange"
    ),
    "chunked": _in(
        "intranode",
        ("Allreduce", "Reduce"),
        NODE,
        "up to 64 KiB, five ranks or more",
        "as inline, each reduces a chunk; a second exchange",
    ),
    "slots": _in("intranode", (*_REDUCES, *_MOVES), NODE, "middle sizes", "through cache-sized slots of shared memory"),
    "direct": _in(
        "intranode",
        (*_REDUCES, *_MOVES),
        NODE,
        "large, and all registered memory",
        "read where it lies; private memory by `process_vm_readv`",
    ),
    "ring": _in(
        "ring", _RING, MESSAGES, "large", "segmented and pipelined; 2(P-1)/P of the vector is all that a rank sends"
    ),
    "recursive_doubling": _in(
        "recursive_doubling", {"Allreduce": "allreduce"}, MESSAGES, "small", "log2 P rounds of the whole vector"
    ),
    "rabenseifner": _in(
        "rabenseifner", {"Allreduce": "allreduce"}, MESSAGES, "middle sizes", "recursive halving, then doubling"
    ),
    "hierarchical": _in(
        "hierarchical",
        {"Allreduce": "allreduce"},
        NODES,
        "several ranks on a node",
        "reduce on each node, all-reduce between, broadcast",
    ),
    "binomial": _in(
        "binomial",
        {"Bcast": "bcast", "Reduce": "reduce"},
        MESSAGES,
        "small",
        "a tree of log2 P rounds",
    ),
    "chain": _in("chain", {"Bcast": "bcast"}, MESSAGES, "large", "a pipeline from rank to rank"),
    "native": _in("native", (*_REDUCES, *_MOVES), MPI, "anything", "MPI's own"),
}


def names(verb: str, *needs: str) -> list[str]:
    """The algorithms that a verb has, of those that need one of `needs`; of all where none are given."""
    return [name for name, each in ALGORITHMS.items() if verb in each.verbs and (not needs or each.needs in needs)]


def number(name: str) -> int:
    """An algorithm's position, from 1 on, as ranks compare it."""
    return 1 + list(ALGORITHMS).index(name)


def name_of(number: int) -> str:
    """The algorithm at a position; "?" where there is none."""
    return list(ALGORITHMS)[number - 1] if 0 < number <= len(ALGORITHMS) else "?"


_loaded: dict[tuple[str, str], tuple[Callable[..., Any], tuple[str, ...]]] = {}


def load(name: str, verb: str) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """The function that carries out a verb, and the names of the arguments that it wants."""
    entry = ALGORITHMS[name]
    key = entry.module, entry.verbs[verb]
    if key not in _loaded:
        function = getattr(importlib.import_module(entry.module), entry.verbs[verb])
        parameters = inspect.signature(function).parameters.values()
        _loaded[key] = function, tuple(each.name for each in parameters if each.default is each.empty)
    return _loaded[key]
