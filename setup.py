"""Builds psgd: four folders at the top, imported as psgd, psgd.collectives, psgd.kernels, psgd.launch."""

import re
from pathlib import Path

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


def addresses() -> dict[str, str]:
    """The project's pages, once CITATION.cff says where it lives: `repository-code: "https://..."`."""
    card = Path(__file__).with_name("CITATION.cff")
    found = re.search(r'^repository-code: "(https://[^"]+)"$', card.read_text() if card.exists() else "", re.M)
    if found is None:
        return {}
    home = found[1].rstrip("/")
    return {"Source": home, "Issues": f"{home}/issues", "Changelog": f"{home}/blob/main/CHANGELOG.md"}


setup(packages=packages(), package_dir=ROOTS, project_urls=addresses())
