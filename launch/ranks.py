"""Is this process already a rank of an MPI job? Read from the environment, without starting MPI."""

from psgd.runtime.launcher_env import place

__all__ = ["place", "speaks"]


def speaks() -> bool:
    """Whether this process may print help and usage errors: no rank, or rank 0."""
    found = place()
    return found is None or found[0] == 0
