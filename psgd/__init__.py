"""Distributed SGD over MPI: parameter server, collectives, and a command to start both.

Importing this package starts neither MPI nor CUDA and loads neither numba nor cupy: the names below are
imported on first use. Begin with `connector.py`, or with `docs/design.md`, which has a picture of the rooms.
"""

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parent


class _CheckoutFinder:
    """In a source checkout, finds psgd.collectives, psgd.kernels and psgd.launch in the folders beside psgd/.

    An installed wheel has them nested and needs no finder. The checkout's root is not appended to
    `__path__` instead: that would make `psgd.setup` importable and `pkgutil.walk_packages` endless.
    """

    names = ("psgd.collectives", "psgd.kernels", "psgd.launch")

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname not in cls.names:
            return None
        folder = _PACKAGE.parent / fullname.rpartition(".")[2]
        return importlib.util.spec_from_file_location(
            fullname, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )


if not (_PACKAGE / "collectives").is_dir() and _CheckoutFinder not in sys.meta_path:
    sys.meta_path.append(_CheckoutFinder)

_EXPORTS = {
    "Error": "psgd.kernels.errors",
    "Callback": "psgd.metrics.callback",
    "CheckpointError": "psgd.kernels.errors",
    "CodecError": "psgd.kernels.errors",
    "ContractError": "psgd.kernels.errors",
    "DataError": "psgd.kernels.errors",
    "DivergedError": "psgd.kernels.errors",
    "PeerLostError": "psgd.kernels.errors",
    "UsageError": "psgd.kernels.errors",
    "abort_on_exception": "psgd.runtime.fail_together",
    "connect": "psgd.connector",
    "Mesh": "psgd.runtime.mesh",
    "Layout": "psgd.nn.layout",
    "checkpoint": "psgd.checkpoint",
    "collectives": "psgd.collectives",
    "data": "psgd.data",
    "metrics": "psgd.metrics",
    "nn": "psgd.nn",
    "optim": "psgd.optim",
    "rules": "psgd.optim.rules",
    "schedules": "psgd.optim.schedules",
    "torch": "psgd.torch",
    "jax": "psgd.jax",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("psgd")
    if name not in _EXPORTS:
        raise AttributeError(f"module 'psgd' has no attribute {name!r}")
    module = importlib.import_module(_EXPORTS[name])
    value = module if _EXPORTS[name].endswith(f".{name}") else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_EXPORTS, "__version__"])
