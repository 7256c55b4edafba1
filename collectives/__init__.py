"""Moving flat arrays between ranks: collectives that any MPI program can call in place of mpi4py's.

`Communicator` has mpi4py's verbs; `MEAN` is the operation that MPI lacks; the functions are single algorithms for those
who want one. Importing this package does not start MPI: the names below are imported on first use.

Rooms, each of which imports only those before it: `mpi`, `shm`, `arguments`, `algorithms`, `device`, `dispatch`,
`fastpath`, and the face (`communicator` with `started_verbs`, `functions`, `compressed`). Begin with `communicator.py`.
"""

import importlib
from typing import Any

_FUNCTIONS = (
    "binomial_bcast",
    "binomial_reduce",
    "chain_bcast",
    "hierarchical_allreduce",
    "native_allreduce",
    "rabenseifner_allreduce",
    "recursive_doubling_allreduce",
    "ring_allgather",
    "ring_allreduce",
    "ring_reduce_scatter",
)
_EXPORTS = {
    "Communicator": "psgd.collectives.communicator",
    "MEAN": "psgd.collectives.arguments.operations",
    "Prequest": "psgd.collectives.fastpath.persistent",
    "Request": "psgd.collectives.dispatch.nonblocking",
    **dict.fromkeys(_FUNCTIONS, "psgd.collectives.functions"),
}


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'psgd.collectives' has no attribute {name!r}")
    value = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_EXPORTS)
