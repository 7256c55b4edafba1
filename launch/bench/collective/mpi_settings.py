"""The settings of Open MPI and MPICH that choose how a collective is carried out on one node."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from psgd.launch import mpiexec
from psgd.launch.bench.peers import processes
from psgd.launch.bench.problem import ALLGATHER, ALLREDUCE, BCAST, REDUCE_SCATTER
from psgd.launch.mpiexec import OPEN_MPI


@dataclass(frozen=True)
class Setting:
    """One way to set an MPI.

    Attributes:
        name: for tables; short.
        variables: of the environment.
    """

    name: str
    variables: dict[str, str] = field(default_factory=dict)


DEFAULT = Setting("default")
_TUNED = {  # what coll/tuned calls a collective
    ALLREDUCE: "allreduce",
    REDUCE_SCATTER: "reduce_scatter_block",
    ALLGATHER: "allgather",
    BCAST: "bcast",
}
_SM = (ALLREDUCE, BCAST)  # what coll/sm carries out
# MPICH: `mpivars` lists the control variables; the algorithms that need no further settings or devices.
_MPICH = {
    ALLREDUCE: (
        "ALLREDUCE",
        "smp recursive_doubling recursive_multiplying reduce_scatter_allgather k_reduce_scatter_allgather tree recexch "
        "ring nb",
    ),
    REDUCE_SCATTER: (
        "REDUCE_SCATTER_BLOCK",
        "recursive_doubling pairwise recursive_halving noncommutative nb",
    ),
    ALLGATHER: (
        "ALLGATHER",
        "brucks k_brucks recursive_doubling ring recexch_doubling recexch_halving nb",
    ),
    BCAST: (
        "BCAST",
        "binomial smp scatter_recursive_doubling_allgather scatter_ring_allgather pipelined_tree tree nb",
    ),
}
_SHARED_MEMORY = {ALLREDUCE: ("release_gather",), BCAST: ("release_gather", "ipc_read"), ALLGATHER: ("ipc_read",)}


def settings(vendor: str, collective: str) -> list[Setting]:
    """All that are to be tried for a collective, the default first.

    Args:
        vendor: of the MPI, as `mpi4py.MPI.get_vendor` names it.
        collective: a name such as ALLREDUCE.
    """
    if vendor == OPEN_MPI:
        return [DEFAULT, *_open_mpi(collective)]
    return [DEFAULT, *_mpich(collective)] if vendor == "MPICH" else [DEFAULT]


def _open_mpi(collective: str) -> list[Setting]:
    found = [Setting("sm", {"OMPI_MCA_coll_sm_priority": "90"})] if collective in _SM else []
    variable = f"coll_tuned_{_TUNED[collective]}_algorithm"
    for number, name in tuned_algorithms(variable).items():
        chosen = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1", f"OMPI_MCA_{variable}": str(number)}
        found.append(Setting(f"tuned {number} {name}", chosen))
    return found


def tuned_algorithms(variable: str) -> dict[int, str]:
    """The values of a variable of coll/tuned, as this Open MPI lists them; none where its `ompi_info` is missing."""
    program = Path(mpiexec.find(mpiexec.library())).with_name("ompi_info")
    try:
        text = processes.output([str(program), "--param", "coll", "tuned", "--level", "9", "--parsable"], 60.0)
    except (OSError, RuntimeError):
        return {}
    found = re.findall(rf":{variable}:enumerator:value:(\d+):(\w+)$", text, re.MULTILINE)
    return {int(number): name for number, name in found if int(number)}


def _mpich(collective: str) -> list[Setting]:
    verb, algorithms = _MPICH[collective]
    node = f"MPIR_CVAR_{verb}_POSIX_INTRA_ALGORITHM"
    found = []
    for name in _SHARED_MEMORY.get(collective, ()):
        # The memory is set up at the first call instead of after some.
        found.append(Setting(name, {node: name, "MPIR_CVAR_POSIX_NUM_COLLS_THRESHOLD": "0"}))
    for name in algorithms.split():
        found.append(Setting(name, {f"MPIR_CVAR_{verb}_INTRA_ALGORITHM": name, node: "mpir"}))
    return found
