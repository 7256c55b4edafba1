"""How many vectors of the parameters' size a rank has, by strategy and options.

Of each vector one line says what it is for. Small things are left out: headers, counters, statuses, a node's slots for
collectives, which do not grow with the model.
"""

from collections.abc import Callable, Mapping
from typing import Any

from psgd.strategies.catalog import find

Rows = dict[str, float]

PARAMETERS, GRADIENTS, STATE = "parameters", "gradients", "optimizer state"
ACCUMULATED = "sum of gradients"


def of_worker(
    strategy: str,
    options: Mapping[str, Any],
    state: int,
    workers: int,
    worker: int = 0,
    servers: int = 0,
    survives: bool = False,
) -> Rows:
    """A worker's vectors, each as a multiple of the parameters' size.

    Args:
        strategy: its name.
        options: the run's, by name; the strategy's own, `accumulate` and `compress` are read.
        state: vectors of the update rule's state.
        workers: how many there are.
        worker: which; worker 0 may have what all share.
        servers: how many there are; a worker that is alone and has none does all by itself.
        survives: the run goes on without workers that die (`psgd.strategies.going_on`).
    """
    codec = options.get("compress") or find(strategy).default_codec(options) or "none"
    if codec == "topk" and find(strategy).compressible:
        state = 1  # its own momentum, whatever the factor
    rows: Rows = {PARAMETERS: 1, GRADIENTS: 1}
    if workers == 1 and not servers and strategy != "easgd":
        rows[STATE] = state
    else:
        rows |= _OF_WORKER.get(strategy, _served)(options, state, codec)
        if worker and strategy == "hogwild":
            del rows["the node's parameters"]
        if worker and strategy == "easgd" and (options.get("easgd_order") or "sync") in ("async", "hogwild"):
            del rows["centre"]
    if (options.get("accumulate") or 1) > 1:
        rows[ACCUMULATED] = 1
    if survives and strategy == "averaging" and options.get("average_momentum") is not False:
        rows["sums of the optimizer state"] = state
    if survives and strategy == "allreduce" and codec != "none":
        rows["residuals and momentum before a step"] = 1 + state
    return {name: number for name, number in rows.items() if number}


def uses_collectives(strategy: str, options: Mapping[str, Any]) -> bool:
    """Whether several workers have the slots of collectives, whose size does not grow with the model."""
    return not find(strategy).servers and (strategy != "easgd" or (options.get("easgd_order") or "sync") == "sync")


def of_server(options: Mapping[str, Any], state: int, servers: int, workers: int, survives: bool = False) -> Rows:
    """A server's vectors, as multiples of all parameters: it updates a part of them.

    Args:
        options: the run's, by name; `clip_norm`, `compress` and `replicas` are read.
        state: vectors of the update rule's state.
        servers: how many there are.
        workers: how many there are.
        survives: the run goes on without workers that die.
    """
    share = (1 + (options.get("replicas") or 0)) / servers
    rows: Rows = {PARAMETERS: 1, STATE: state * share}
    if options.get("clip_norm"):
        rows["sum of a step's gradients"] = share
    if options.get("compress") not in (None, "none"):
        del rows[STATE]  # momentum comes before encoding, on the workers
        rows["residuals and updates"] = (3 + 2 * workers) * share  # of each worker its push and its parameters
        if survives:  # as compressed runs do not read workers' memory
            rows["whole gradients on their way"] = workers * share
    return {name: number for name, number in rows.items() if number}


def _served(options: Mapping[str, Any], state: int, codec: str) -> Rows:
    return {} if codec == "none" else {STATE: state, "residuals and updates": 2}


def _allreduce(options: Mapping[str, Any], state: int, codec: str) -> Rows:
    return {STATE: state} if codec == "none" else {STATE: state, "residuals and updates": 2}


def _averaging(options: Mapping[str, Any], state: int, codec: str) -> Rows:
    rows: Rows = {STATE: state, "sum of the parameters": 1}
    momentum = bool(options.get("outer_momentum"))
    if momentum or (options.get("outer_lr") or 1.0) != 1.0:
        rows |= {"parameters at the last averaging": 1, "velocity of the outer step": int(momentum)}
    return rows


def _easgd(options: Mapping[str, Any], state: int, codec: str) -> Rows:
    order = options.get("easgd_order") or "sync"
    return {
        STATE: state,
        "displacement": 1,
        "centre": 1 if order == "sync" else 2,
    }  # with its copy, or the incoming one


def _hogwild(options: Mapping[str, Any], state: int, codec: str) -> Rows:
    return {STATE: state, "the node's parameters": 1}


def _decentralized(options: Mapping[str, Any], state: int, codec: str) -> Rows:
    if options.get("peers") == "pairs":
        return {STATE: state, "the partner's parameters": 2}
    return {STATE: state, "residuals and updates": 10 if codec == "none" else 4}  # grows with how far others are ahead


_OF_WORKER: dict[str, Callable[[Mapping[str, Any], int, str], Rows]] = {
    "allreduce": _allreduce,
    "averaging": _averaging,
    "easgd": _easgd,
    "hogwild": _hogwild,
    "decentralized": _decentralized,
}
