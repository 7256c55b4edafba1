"""Whether an MPI can go on when a rank dies, and whether this job was started so that it does."""

import os
from collections.abc import Mapping

VARIABLE = "OMPI_MCA_mpi_ft_enable"
"""What `mpirun --with-ft ulfm` sets in the environment of the ranks."""
ARGUMENTS = ("--with-ft", "ulfm")
"""What turns it on, for Open MPI's mpirun."""


def built_in() -> bool:
    """Whether mpi4py's MPI library has ULFM. It is loaded, not started."""
    from mpi4py import MPI

    # An MPI without it gives all these names one meaningless value.
    return MPI.ERR_PROC_FAILED not in (MPI.ERR_UNKNOWN, MPI.ERR_REVOKED)


def enabled(environment: Mapping[str, str] | None = None) -> bool:
    """Whether this rank's job was started with it, which its launcher says."""
    found = os.environ if environment is None else environment
    return found.get(VARIABLE, "0").lower() in ("1", "true")
