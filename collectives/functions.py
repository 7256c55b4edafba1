"""Single algorithms as plain functions with mpi4py's arguments, for those who want one and no object to keep.

`comm` is a Communicator or any mpi4py intracommunicator. For the latter a Communicator is made at the first call, which
is collective anyway, kept with it as an MPI attribute, and freed when it is freed. A duplicate gets its own. Arguments,
blocking and errors are those of the Communicator's verb; UsageError also where the algorithm cannot run here. What
makes a Communicator unusable makes `comm` unusable to these functions: pass a duplicate then.
"""

import threading
from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from psgd.collectives.communicator import Communicator

AnyComm = Communicator | MPI.Intracomm

_keyval = MPI.KEYVAL_INVALID
_lock = threading.Lock()


def ring_allreduce(comm: AnyComm, sendbuf: Any, recvbuf: Any, op: MPI.Op | str = MPI.SUM) -> None:
    """Allreduce around a ring: each rank sends 2 (P - 1)/P of the data in 2 (P - 1) steps; for large data."""
    _communicator(comm).Allreduce(sendbuf, recvbuf, op, algorithm="ring")


def ring_reduce_scatter(
    comm: AnyComm, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: MPI.Op | str = MPI.SUM
) -> None:
    """Reduce_scatter around a ring: the first half of a ring's Allreduce."""
    _communicator(comm).Reduce_scatter(sendbuf, recvbuf, recvcounts, op, algorithm="ring")


def ring_allgather(comm: AnyComm, sendbuf: Any, recvbuf: Any) -> None:
    """Allgather around a ring: the second half of a ring's Allreduce."""
    _communicator(comm).Allgather(sendbuf, recvbuf, algorithm="ring")


def recursive_doubling_allreduce(comm: AnyComm, sendbuf: Any, recvbuf: Any, op: MPI.Op | str = MPI.SUM) -> None:
    """Allreduce in about log2 P steps, each of all data; for small data."""
    _communicator(comm).Allreduce(sendbuf, recvbuf, op, algorithm="recursive_doubling")


def rabenseifner_allreduce(comm: AnyComm, sendbuf: Any, recvbuf: Any, op: MPI.Op | str = MPI.SUM) -> None:
    """Allreduce by halving, then doubling: about 2 log2 P steps and a ring's amount of data; for middle sizes."""
    _communicator(comm).Allreduce(sendbuf, recvbuf, op, algorithm="rabenseifner")


def hierarchical_allreduce(comm: AnyComm, sendbuf: Any, recvbuf: Any, op: MPI.Op | str = MPI.SUM) -> None:
    """Allreduce within each node's shared memory and between nodes.

    Raises:
        UsageError: several ranks, and all are on one node or those of some node share no memory.
    """
    _communicator(comm).Allreduce(sendbuf, recvbuf, op, algorithm="hierarchical")


def native_allreduce(comm: AnyComm, sendbuf: Any, recvbuf: Any, op: MPI.Op | str = MPI.SUM) -> None:
    """Allreduce of the MPI library."""
    _communicator(comm).Allreduce(sendbuf, recvbuf, op, algorithm="native")


def binomial_bcast(comm: AnyComm, buf: Any, root: int = 0) -> None:
    """Bcast down a binomial tree: about log2 P steps, each of all data; for small data."""
    _communicator(comm).Bcast(buf, root, algorithm="binomial")


def chain_bcast(comm: AnyComm, buf: Any, root: int = 0) -> None:
    """Bcast from rank to rank in segments, several on their way at once; for large data."""
    _communicator(comm).Bcast(buf, root, algorithm="chain")


def binomial_reduce(comm: AnyComm, sendbuf: Any, recvbuf: Any, op: MPI.Op | str = MPI.SUM, root: int = 0) -> None:
    """Reduce up a binomial tree: about log2 P steps, each of all data."""
    _communicator(comm).Reduce(sendbuf, recvbuf, op, root, algorithm="binomial")


def _communicator(comm: AnyComm) -> Communicator:
    """The Communicator of an MPI communicator, made where there is none yet: on all ranks alike."""
    if isinstance(comm, Communicator):
        return comm
    if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
        return Communicator(comm)  # refuses it
    key = _key()
    kept = comm.Get_attr(key)
    if isinstance(kept, Communicator):
        return kept
    made = Communicator(comm)
    comm.Set_attr(key, made)
    return made


def _key() -> int:
    """The attribute's key, made once: another thread's would hide what is kept. MPI has to be initialized."""
    global _keyval
    with _lock:
        if _keyval == MPI.KEYVAL_INVALID:
            _keyval = MPI.Comm.Create_keyval(delete_fn=_drop)  # without a copy function duplicates do not inherit it
        return _keyval


def _drop(comm: MPI.Comm, keyval: int, kept: Communicator) -> None:
    """MPI calls this inside `comm.Free()`, which all ranks call, as they have to call `kept.free()`.

    There other communicators may be freed. Not so while MPI ends, which is all that frees predefined ones, and which
    some ranks may do long before others: what is kept ends with it then.
    """
    if comm not in (MPI.COMM_WORLD, MPI.COMM_SELF) and not MPI.Is_finalized():
        kept.free()
