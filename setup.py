"""Builds psgd: four folders at the top, imported as psgd, psgd.collectives, psgd.kernels, psgd.launch."""

from setuptools import find_packages, setup

ROOTS = {
    "psgd": "psgd",
    "psgd.collectives": "collectives",
    "psgd.kernels": "kernels",
    "psgd.launch": "launch",
}


def packages() -> list[str]:
    """Names every package under the four roots, so that a new subpackage is never forgotten."""
    names = []
    for name, folder in ROOTS.items():
        names += [name, *(f"{name}.{sub}" for sub in find_packages(folder))]
    return names


setup(packages=packages(), package_dir=ROOTS)
