"""One BLAS, OpenMP and Numba thread a rank, unless the environment says otherwise."""

import os
from collections.abc import MutableMapping

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def limit(environment: MutableMapping[str, str] | None = None) -> None:
    """Sets each of `VARIABLES` that is unset: to OMP_NUM_THREADS where that was given, else to 1.

    Must run before numpy and numba are imported: they read these once.

    Args:
        environment: variables to change instead of `os.environ`.
    """
    env = os.environ if environment is None else environment
    given = env.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    for name in VARIABLES:
        env.setdefault(name, given if given.isdecimal() and int(given) > 0 else "1")
