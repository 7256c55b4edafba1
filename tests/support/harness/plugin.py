"""The pytest side: the `ranks` marker, the fixtures `comm`, `job`, `hosts`, `psgd_command` and `refused`."""

import contextlib
import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import selection, standstill
from harness.hosts import Cluster, UnavailableError
from harness.job import Command, Jobs, Refusals
from harness.pool import Pool

POOL = pytest.StashKey[Pool]()
TIMEOUT_S = 60.0


def pytest_addoption(parser: pytest.Parser) -> None:
    add = parser.getgroup("psgd", "parts of the suite").addoption
    add("--only-ranks", action="store_true", help="for a second MPI: what harness/selection.py chooses")
    add("--part", choices=("ranks", "rest"), help="only what starts ranks, or only what starts none or is on a cluster")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = selection.for_second_mpi(items) if config.getoption("--only-ranks") else items
    if part := config.getoption("--part"):
        chosen = [item for item in chosen if selection.part_of(item) == part]
    kept = set(chosen)
    if left_out := [item for item in items if item not in kept]:
        config.hook.pytest_deselected(items=left_out)
    items[:] = chosen


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and importlib.util.find_spec("cupy") is None:
        pytest.skip("no CuPy, so no GPU")  # said here: ranks would load all that their test needs first


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "ranks(*n, timeout=60): run the body on n ranks, as `comm`")
    config.stash[POOL] = Pool(int(os.environ.get("PSGD_TEST_RANKS", "5")))
    clock = standstill.Clock(standstill.LATE_S)
    clock.start()
    config.pluginmanager.register(standstill.Repeats(clock))


def pytest_unconfigure(config: pytest.Config) -> None:
    if POOL in config.stash:
        config.stash[POOL].stop()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("ranks")
    if marker is None:
        return
    if "comm" not in metafunc.fixturenames or not marker.args:
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: ranks(n, ...) needs a number and an argument `comm`")
    metafunc.parametrize("comm", marker.args, indirect=True, ids=[f"{n}ranks" for n in marker.args])


@pytest.fixture
def comm(request: pytest.FixtureRequest) -> int:
    """In the pytest process only the number of ranks; on the ranks a communicator."""
    if not hasattr(request, "param"):
        pytest.fail("a test with `comm` needs @pytest.mark.ranks(n)", pytrace=False)
    return int(request.param)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    marker = pyfuncitem.get_closest_marker("ranks")
    if marker is None:
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames if name != "comm"}
    n = pyfuncitem.funcargs["comm"]
    assert isinstance(n, int)
    request = {
        "file": str(pyfuncitem.path),
        "cls": pyfuncitem.cls.__name__ if pyfuncitem.cls else "",
        "function": pyfuncitem.originalname,
        "kwargs": {name: _as_json(name, value) for name, value in given.items()},
    }
    outcome = pyfuncitem.config.stash[POOL].run(n, float(marker.kwargs.get("timeout", TIMEOUT_S)), request)
    if outcome.failed:
        pytest.fail(outcome.failed, pytrace=False)
    if outcome.skip:
        pytest.skip(outcome.skip)
    return True


def _as_json(name: str, value: Any) -> Any:
    if name == "tmp_path":
        return {"path": str(value)}
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        pytest.fail(
            f"argument {name!r} of a `ranks` test must be JSON or tmp_path, got {type(value).__name__}",
            pytrace=False,
        )
    return value


@pytest.fixture
def job(tmp_path: Path) -> Jobs:
    """Runs an MPI job of its own: `job(n, code_or_argv, timeout=, env=, ulfm=, check=)`."""
    return Jobs(tmp_path)


@pytest.fixture
def hosts() -> Iterator[Callable[..., Cluster]]:
    """Makes hosts behind links of a rate, or skips: `hosts(n, rate="1gbit").run(ranks_per_host, ...)`."""
    with contextlib.ExitStack() as stack:

        def make(n: int, rate: str = "1gbit") -> Cluster:
            try:
                return stack.enter_context(Cluster(n, rate))
            except UnavailableError as error:
                pytest.skip(f"no hosts here: {error}")

        yield make


@pytest.fixture
def psgd_command(tmp_path: Path) -> Command:
    """Runs `psgd`: `psgd_command("train", "--help", n=None, timeout=, env=)`."""
    return Command(Jobs(tmp_path))


@pytest.fixture
def refused(tmp_path: Path) -> Refusals:
    """Runs wrong command lines of `psgd`, all in one process: `refused(("train", "--lr", "0"), ...)`."""
    return Refusals(Jobs(tmp_path))
