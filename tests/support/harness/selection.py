"""Which tests a second MPI runs too, and the parts of the suite that can run beside each other.

MPIs differ in their calls. Sizes, rules and options are the same code with each of them. So a second MPI runs what
starts ranks, and of a test function with many cases a fixed, spread sample.
"""

import hashlib
from collections.abc import Sequence

import pytest

CLUSTER = {"cluster", "login"}
STARTS_RANKS = {"comm", "job", "hosts", "psgd_command", *CLUSTER}
MOST_CASES = 3
"""Of one test function that is not marked with `both_mpis_whole`."""


def for_second_mpi(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Those of the tests that a second MPI runs, in their order."""
    starting = [item for item in items if _starts_ranks(item) and item.get_closest_marker("one_mpi") is None]
    functions: dict[str, list[pytest.Item]] = {}
    for item in _on_the_most(starting):
        functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    sample = {item for cases in functions.values() for item in _sample(cases)}
    return [item for item in starting if item in sample]


def part_of(item: pytest.Item) -> str:
    """Of the two parts that can run beside each other: `ranks` fill the cores, `rest` is one process most of the time.

    What waits for a SLURM cluster belongs to the rest.
    """
    return "ranks" if _starts_ranks(item) and not CLUSTER & set(getattr(item, "fixturenames", ())) else "rest"


def _starts_ranks(item: pytest.Item) -> bool:
    """Whether a test runs on ranks of the pool, or starts a job of its own."""
    return bool(STARTS_RANKS & set(getattr(item, "fixturenames", ())))


def _params(item: pytest.Item) -> dict[str, object]:
    return dict(item.callspec.params) if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


def _on_the_most(items: list[pytest.Item]) -> list[pytest.Item]:
    """Of tests that differ in the number of ranks alone, those with the most."""

    def ranks(item: pytest.Item) -> int:
        n = _params(item).get("comm", 0)
        return n if isinstance(n, int) else 0

    def test(item: pytest.Item) -> str:
        return item.nodeid.replace(f"{ranks(item)}ranks", "")

    most: dict[str, int] = {}
    for item in items:
        most[test(item)] = max(most.get(test(item), 0), ranks(item))
    return [item for item in items if ranks(item) == most[test(item)]]


def _sample(cases: list[pytest.Item]) -> list[pytest.Item]:
    """Of one function's cases the first, the last and others by a hash of their names: the same ones every time."""
    marker = cases[0].get_closest_marker("both_mpis_whole")
    if marker is not None and not marker.args:
        return cases
    by_hash = sorted(cases, key=lambda item: hashlib.sha256(item.nodeid.encode()).digest())
    taken = list(dict.fromkeys([cases[0], cases[-1], *by_hash]))[:MOST_CASES]
    if marker is not None:
        one_of_each = {repr([_params(item)[name] for name in marker.args]): item for item in [*by_hash, *taken]}
        taken += one_of_each.values()
    return taken
